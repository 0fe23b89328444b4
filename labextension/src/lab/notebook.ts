/** What a notebook has: a toolbar button and the cell action "Run distributed". */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { CommandToolbarButton, IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import type { Api } from '../api/api';
import { canRun, openForm } from './cellform';
import { ranksIcon } from './icons';
import { NAME } from './ids';
import { ILanguage } from './language';
import { IDistDL, type DistDL } from './live';
import { __ } from '../ui/trans';

const RUN_CELL = 'distdl:run-cell';

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:notebook`,
  description: 'The toolbar button and the cell action "Run distributed".',
  autoStart: true,
  requires: [ILanguage, INotebookTracker, IDistDL],
  optional: [IToolbarWidgetRegistry],
  activate: (app: JupyterFrontEnd, _language: unknown, notebooks: INotebookTracker, { api }: DistDL, toolbars: IToolbarWidgetRegistry | null) => {
    addCommand(app, notebooks, api);
    toolbars?.addFactory<NotebookPanel>('Notebook', 'distdl-run', () => {
      const button = new CommandToolbarButton({ commands: app.commands, id: RUN_CELL, label: __('Run distributed'), icon: ranksIcon });
      button.addClass('dd-run-button');
      return button;
    });
  },
};

function addCommand({ commands, shell }: JupyterFrontEnd, notebooks: INotebookTracker, api: Api): void {
  const here = (): NotebookPanel | null => (notebooks.currentWidget === shell.currentWidget ? notebooks.currentWidget : null);
  commands.addCommand(RUN_CELL, {
    label: __('Run distributed'),
    caption: __('Run this cell on many processes: choose how, then submit'),
    icon: ranksIcon,
    isEnabled: () => canRun(here()?.content.activeCell),
    isVisible: () => canRun(here()?.content.activeCell),
    execute: () => {
      const panel = here();
      const cell = panel?.content.activeCell;
      if (panel && canRun(cell)) openForm(panel, cell, commands, api);
    },
    describedBy: { args: { type: 'object', properties: {} } },
  });
  notebooks.activeCellChanged.connect(() => commands.notifyCommandChanged(RUN_CELL));
}

export default plugin;
