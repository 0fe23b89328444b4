/** What the views know of jobs and clusters: one client of the HTTP API for the whole page. */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { NAME } from './ids';
import { ILanguage } from './language';

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:api`,
  description: 'The jobs and clusters of this server, as the other plugins ask for them.',
  autoStart: true,
  requires: [ILanguage],
  activate: () => undefined,
};

export default plugin;
