/** A job's page as a document of the main area. Its tab names the job and shows the job's state. */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import { LabIcon } from '@jupyterlab/ui-components';
import { Signal, type ISignal } from '@lumino/signaling';
import { Menu, Widget } from '@lumino/widgets';
import { curveDefaults } from '../job/curvedefaults';
import type { JobMessage } from '../job/jobview';
import { JobPageView, type PageHost, type PageState } from '../job/jobpageview';
import { capital, shortId, shownState } from '../ui/format';
import { connection, jobHost } from './jobhost';
import { ranksIcon } from './icons';
import type { DistDL } from './live';
import { markView } from './onscreen';
import type { OpenCell } from './opencell';
import { stateIcon } from './stateicons';
import { __ } from '../ui/trans';

/** What opens a page again after a reload. */
export interface JobPageArgs extends Partial<PageState> {
  id: string;
}

export const OPEN_JOB = 'distdl:open-job';
/** Secondary actions; those without a registered command are omitted. */
const MENU = ['distdl:copy-id', 'distdl:insert-code', 'distdl:delete-job'];

export class JobPage extends Widget {
  readonly #view: JobPageView;
  readonly #changed = new Signal<this, void>(this);
  #state: PageState;

  constructor(
    readonly jobId: string,
    private readonly app: JupyterFrontEnd,
    private readonly distdl: DistDL,
    private readonly openCell: OpenCell,
    { tab = 'overview', choice = curveDefaults() }: Partial<PageState>,
  ) {
    super();
    this.id = `distdl-job-${jobId}`;
    this.addClass('dd-document');
    markView(this.node, jobId);
    this.node.tabIndex = -1;
    this.title.closable = true;
    this.title.icon = ranksIcon;
    this.title.label = shortId(jobId);
    this.#state = { tab, choice };
    this.#view = new JobPageView(this.node, this.#host(), this.#state, (state) => this.#keep(state));
  }

  /** What of the page outlives a reload; `stateChanged` announces changes. */
  get args(): JobPageArgs {
    return { id: this.jobId, ...this.#state };
  }

  get stateChanged(): ISignal<this, void> {
    return this.#changed;
  }

  /** Show the stacks. */
  showStacks(): void {
    this.#view.showStacks();
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.#view.dispose();
    Signal.clearData(this);
    super.dispose();
  }

  protected override onAfterShow(): void {
    this.#view.refresh();
  }

  protected override onAfterAttach(): void {
    this.#view.refresh();
  }

  protected override onActivateRequest(): void {
    if (!this.node.contains(document.activeElement)) this.node.focus();
  }

  #keep(state: PageState): void {
    this.#state = state;
    this.#changed.emit();
  }

  #host(): PageHost {
    const { api } = this.distdl;
    const { commands } = this.app;
    const id = this.jobId;
    return {
      ...jobHost(this.distdl, id, (fresh) => void commands.execute(OPEN_JOB, { id: fresh })),
      connection: () => connection(this.distdl),
      tryNow: () => this.distdl.live.tryNow(),
      detail: () => api.job(id),
      outputs: () => api.outputs(id),
      checkpoints: () => api.checkpoints(id),
      trackers: () => api.trackers(id),
      fork: async (path) => void commands.execute(OPEN_JOB, { id: (await api.forkJob(id, path)).id }),
      outputAddress: (path) => api.outputUrl(id, path),
      logAddress: (rank) => api.logUrl(id, rank),
      check: () => {
        const opened = api.checkJob(id).then((fresh) => commands.execute(OPEN_JOB, { id: fresh.id }));
        opened.catch((error: unknown) => this.#view.say(error));
      },
      checked: () => api.checkOfJob(id),
      menu: (below) => this.#openMenu(below),
      openCell: (detail, cell, line) => this.openCell(detail, cell, line).catch((error: unknown) => this.#view.say(String(error))),
      changed: (message) => this.#retitle(message),
    };
  }

  #retitle({ card }: JobMessage): void {
    this.title.label = `${card.name} ${shortId(card.id)}`;
    const state = shownState(card.state, card.stall !== null);
    this.title.caption = __('Job %1, %2', card.id, capital(state));
    const icon = stateIcon(state);
    if ((this.title.icon as LabIcon | undefined)?.name !== icon.name) this.title.icon = icon;
  }

  #openMenu(below: HTMLElement): void {
    const { commands } = this.app;
    const menu = new Menu({ commands });
    for (const command of MENU) if (commands.hasCommand(command)) menu.addItem({ command, args: { id: this.jobId } });
    menu.aboutToClose.connect(() => below.focus());
    const { left, bottom } = below.getBoundingClientRect();
    menu.open(left, bottom);
  }
}
