/** Draws a cell output of the type `application/vnd.distdl.job+json`, live from the server. */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { NAME } from './ids';
import { ILanguage } from './language';

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:renderer`,
  description: 'Draws the outputs of jobs in notebooks.',
  autoStart: true,
  requires: [ILanguage],
  activate: () => undefined,
};

export default plugin;
