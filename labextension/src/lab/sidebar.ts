/** The left sidebar "Distributed training": clusters and jobs, search, actions. */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { NAME } from './ids';
import { ILanguage } from './language';

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:sidebar`,
  description: 'The left sidebar with clusters and jobs.',
  autoStart: true,
  requires: [ILanguage],
  activate: () => undefined,
};

export default plugin;
