/** The commands of jobs and clusters, the palette, and the card in the launcher. */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Clipboard, Dialog, ICommandPalette, Notification, showDialog } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker, NotebookActions } from '@jupyterlab/notebook';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { isActive } from '../sidebar/jobtext';
import type { JobRow } from '../sidebar/types';
import { shortId, unquoted } from '../ui/format';
import { ranksIcon } from './icons';
import { NAME } from './ids';
import { ILanguage } from './language';
import { IDistDL, type DistDL } from './live';
import { ISidebar } from './sidebar';
import { helpAddress, Refusal, sentences } from '../ui/refusal';
import { __, _n } from '../ui/trans';

type Args = ReadonlyPartialJSONObject;

/** States without stacks. */
const SETUP: ReadonlySet<string> = new Set(['queued', 'preparing', 'starting']);

/** Commands in the palette, from all plugins. */
const PALETTE = [
  'distdl:new-job', 'distdl:run-cell', 'distdl:focus-sidebar', 'distdl:add-cluster', 'distdl:open-chosen', 'distdl:compare-chosen',
  'distdl:cancel-job', 'distdl:rerun-job', 'distdl:check-job', 'distdl:resume-job', 'distdl:show-stacks', 'distdl:copy-id', 'distdl:insert-code', 'distdl:delete-job',
];

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:commands`,
  description: 'Commands in the palette, and the card in the launcher.',
  autoStart: true,
  requires: [ILanguage, IDistDL, ISidebar],
  optional: [ICommandPalette, ILauncher, INotebookTracker],
  activate: (
    app,
    _language: unknown,
    distdl: DistDL,
    sidebar: ISidebar,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    notebooks: INotebookTracker | null,
  ) => {
    const jobs = new JobCommands(app, distdl, sidebar, notebooks);
    jobs.register();
    registerPlaces(app.commands, sidebar);
    document.addEventListener('keydown', (event) => saveFrom(app.commands, event), { capture: true });
    for (const command of PALETTE) palette?.addItem({ command, category: __('Distributed training'), args: { palette: true } });
    launcher?.add({ command: 'distdl:new-job', category: __('Other'), rank: 5 });
  },
};

/** Save as JupyterLab does: keys in our views are their own (see `adopt`), and this one else the browser would take. */
function saveFrom(commands: CommandRegistry, event: KeyboardEvent): void {
  const ours = event.target instanceof Element && event.target.closest('.dd[data-lm-suppress-shortcuts]');
  if (!ours || event.key.toLowerCase() !== 's' || event.altKey || event.shiftKey || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  if (commands.hasCommand('docmanager:save')) void commands.execute('docmanager:save');
}

/** Commands that act on one job: the one with `id`, else the job last pointed at in the sidebar or by its page. */
class JobCommands {
  constructor(
    private readonly app: JupyterFrontEnd,
    private readonly distdl: DistDL,
    private readonly sidebar: ISidebar,
    private readonly notebooks: INotebookTracker | null,
  ) {}

  register(): void {
    this.#add('cancel-job', __('Cancel'), isActive, (row, args) => this.#cancel(row, args));
    this.#add('check-job', __('Check'), (row) => row.can_rerun, ({ id }) => this.#check(id));
    this.#add('rerun-job', __('Rerun'), (row) => row.can_rerun, ({ id }) => this.#rerun(id));
    this.#add('resume-job', __('Resume'), (row) => row.can_resume, ({ id }) => this.#resume(id));
    this.#add('show-stacks', __('Show stacks'), (row) => isActive(row) && !SETUP.has(row.state), ({ id }) => this.#stacks(id));
    this.#add('delete-job', __('Delete'), (row) => !isActive(row), (row, args) => this.#delete(row, args));
    this.#add('copy-id', __('Copy id'), () => true, ({ id }) => Clipboard.copyToSystem(id));
    this.#add('insert-code', __('Insert code'), () => Boolean(this.notebooks?.currentWidget), ({ id }) => this.#insert(id));
    this.#add('open-chosen', __('Open job page'), () => true, () => this.#openChosen());
    this.#registerCompare();
  }

  #add(name: string, label: string, can: (row: JobRow) => boolean, execute: (row: JobRow, args: Args) => unknown): void {
    this.app.commands.addCommand(`distdl:${name}`, {
      label: (args) => this.#label(label, args),
      isEnabled: (args) => this.#can(args, can),
      isVisible: (args) => this.#can(args, can),
      execute: async (args) => {
        const row = this.#row(args);
        if (row) await this.#showErrors(execute(row, args));
      },
    });
  }

  /** In the palette, only the label names the job. */
  #label(label: string, args: Args): string {
    const row = args['palette'] ? this.#row(args) : null;
    return row ? `${label}: ${row.name} ${shortId(row.id)}` : label;
  }

  #can(args: Args, can: (row: JobRow) => boolean): boolean {
    const row = this.#row(args);
    return row !== null && can(row);
  }

  #row(args: Args): JobRow | null {
    const { id } = args;
    return typeof id === 'string' ? (this.sidebar.jobList.get(id) ?? null) : this.sidebar.target;
  }

  /** Show an error for which no view is responsible. */
  async #showErrors(done: unknown): Promise<void> {
    try {
      await done;
    } catch (error) {
      const address = error instanceof Refusal ? helpAddress(error.code) : '';
      const actions = address ? [{ label: __('What to do'), callback: () => void window.open(address, '_blank', 'noopener') }] : [];
      Notification.error(unquoted(sentences(error)), { autoClose: 10_000, actions });
    }
  }

  /** Whether the job's row is visible in the sidebar, so that it can ask there. */
  #inPlace(row: JobRow, args: Args): boolean {
    return args['id'] === undefined && !args['palette'] && this.sidebar.view.shows(row.id);
  }

  async #cancel(row: JobRow, args: Args): Promise<void> {
    if (this.#inPlace(row, args)) return this.sidebar.view.cancel(row.id);
    const asks = this.sidebar.view.asksToCancel(row);
    if (asks && !(await ask(__('Cancel %1?', row.name), __('Cancel job'), __('Keep running')))) return;
    await this.distdl.api.cancelJob(row.id, row.state === 'canceling');
  }

  async #delete(row: JobRow, args: Args): Promise<void> {
    if (this.#inPlace(row, args)) return this.sidebar.view.remove(row.id);
    const question = __('Delete 1 job, %1 %2, with its log and outputs?', row.name, shortId(row.id));
    if (await ask(question, __('Delete'), __('Keep'))) await this.distdl.api.removeJob(row.id);
  }

  async #check(id: string): Promise<void> {
    const fresh = await this.distdl.api.checkJob(id);
    await this.app.commands.execute('distdl:open-job', { id: fresh.id });
  }

  async #rerun(id: string): Promise<void> {
    const fresh = await this.distdl.api.rerunJob(id);
    await this.app.commands.execute('distdl:open-job', { id: fresh.id });
  }

  async #resume(id: string): Promise<void> {
    const fresh = await this.distdl.api.resumeJob(id);
    await this.app.commands.execute('distdl:open-job', { id: fresh.id });
  }

  /** The stacks are shown on the job's page. */
  async #stacks(id: string): Promise<void> {
    await this.app.commands.execute('distdl:open-job', { id, stacks: true });
  }

  /** Put a cell that attaches to the job below the active one, or into it when it is empty. */
  async #insert(id: string): Promise<void> {
    const panel = this.notebooks?.currentWidget;
    if (!panel) return;
    await panel.context.ready; // until its file is there a notebook has one empty cell, which goes then
    const { content } = panel;
    if (content.activeCell?.model.sharedModel.getSource().trim()) NotebookActions.insertBelow(content);
    content.activeCell?.model.sharedModel.setSource(`from distdl_jupyter import attach\n\njob = attach(${JSON.stringify(id)})`);
    this.app.shell.activateById(panel.id);
  }

  async #openChosen(): Promise<void> {
    const { view, target } = this.sidebar;
    const ids = view.chosen.length > 1 ? view.chosen : [target?.id ?? ''];
    for (const id of ids.filter(Boolean)) await this.app.commands.execute('distdl:open-job', { id });
  }

  #registerCompare(): void {
    const { commands } = this.app;
    const { view } = this.sidebar;
    commands.addCommand('distdl:compare-chosen', {
      label: () => _n('Compare %1 job', 'Compare %1 jobs', view.chosen.length),
      isEnabled: () => view.chosen.length > 1,
      isVisible: () => view.chosen.length > 1,
      execute: () => commands.execute('distdl:compare', { ids: view.chosen }),
    });
  }
}

/** Commands of the sidebar itself and of its clusters. */
function registerPlaces(commands: CommandRegistry, sidebar: ISidebar): void {
  const { view } = sidebar;
  commands.addCommand('distdl:focus-sidebar', {
    label: __('Show clusters and jobs'),
    icon: ranksIcon,
    execute: () => {
      sidebar.reveal();
      view.focus();
    },
  });
  commands.addCommand('distdl:add-cluster', {
    label: __('Add cluster'),
    execute: () => {
      sidebar.reveal();
      view.addCluster();
    },
  });
  commands.addCommand('distdl:check-cluster', { label: __('Check'), execute: () => view.checkCluster() });
  commands.addCommand('distdl:remove-cluster', { label: __('Remove'), execute: () => view.removeCluster() });
}

async function ask(title: string, yes: string, no: string): Promise<boolean> {
  const buttons = [Dialog.cancelButton({ label: no }), Dialog.warnButton({ label: yes })];
  const { button } = await showDialog({ title, buttons, defaultButton: 0 });
  return button.accept;
}

export default plugin;
