/** Commands of the palette, and the card in the launcher. */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { NAME } from './ids';
import { ILanguage } from './language';

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:commands`,
  description: 'Commands in the palette, and the card in the launcher.',
  autoStart: true,
  requires: [ILanguage],
  activate: () => undefined,
};

export default plugin;
