/** The pages of the main area: one for a job, one that compares several. */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { NAME } from './ids';
import { ILanguage } from './language';

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:pages`,
  description: 'The pages of the main area: a job, and jobs compared.',
  autoStart: true,
  requires: [ILanguage],
  activate: () => undefined,
};

export default plugin;
