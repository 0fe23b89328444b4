/** What JupyterLab loads: the plugins of distributed training, one module each. */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import azure from './azure';
import commands from './commands';
import language from './language';
import launchpage from './launchpage';
import live from './live';
import notebook from './notebook';
import notifications from './notifications';
import pages from './pages';
import renderer from './renderer';
import sidebar from './sidebar';
import status from './status';
import widgets from './widgets';

const plugins: JupyterFrontEndPlugin<unknown>[] = [language, live, sidebar, azure, pages, renderer, notebook, launchpage, notifications, status, widgets, commands];

export default plugins;
