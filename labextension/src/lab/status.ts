/** The number of running jobs in the status bar, and the jobs among what runs in JupyterLab. */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { NAME } from './ids';
import { ILanguage } from './language';

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:status`,
  description: 'The status bar item and the section of the running panel.',
  autoStart: true,
  requires: [ILanguage],
  activate: () => undefined,
};

export default plugin;
