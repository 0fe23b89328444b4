/** Jobs compared, as a document of the main area. It polls while a job runs and the stream reports a change. */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Signal, type ISignal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { ComparisonView, type CompareHost, type CompareState } from '../job/comparison';
import type { Watch } from '../job/jobview';
import { OPEN_JOB } from './jobpage';
import type { DistDL } from './live';
import { compareIcon } from './stateicons';
import { _n } from '../ui/trans';

/** Poll interval in milliseconds while a job runs. */
const PACE = 2000;
/** How many jobs are offered to be added. */
const OFFERED = 50;

/** What opens a page again after a reload. */
export interface ComparePageArgs extends CompareState {
  key: string;
}

export class ComparePage extends Widget {
  readonly #view: ComparisonView;
  readonly #changed = new Signal<this, void>(this);
  readonly #watch: Watch;
  /** The list's rows of the jobs that are compared, to see whether one has changed. */
  #rows = '';
  #state: CompareState;
  #due = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `key` is the page's name in the saved layout. */
  constructor(private readonly app: JupyterFrontEnd, private readonly distdl: DistDL, state: CompareState, readonly key: string) {
    super();
    this.id = `distdl-compare-${key}`;
    this.addClass('dd-document');
    this.node.tabIndex = -1;
    this.title.closable = true;
    this.title.icon = compareIcon;
    this.#state = state;
    this.#retitle();
    this.#view = new ComparisonView(this.node, this.#host(), state);
    this.#watch = distdl.live.watchJobs(({ rows }) => {
      const own = JSON.stringify(rows.filter((row) => this.#state.ids.includes(row.id)));
      if (own !== this.#rows) this.#soon();
      this.#rows = own;
    });
  }

  /** What opens the page again after a reload; `stateChanged` announces changes. */
  get args(): ComparePageArgs {
    return { ...this.#state, key: this.key };
  }

  get stateChanged(): ISignal<this, void> {
    return this.#changed;
  }

  /** Offer jobs to be added. */
  offer(): void {
    void this.#view.toggleList();
  }

  override dispose(): void {
    if (this.isDisposed) return;
    clearTimeout(this.#timer);
    this.#watch.dispose();
    this.#view.dispose();
    Signal.clearData(this);
    super.dispose();
  }

  protected override onAfterShow(): void {
    this.#view.load();
  }

  protected override onAfterAttach(): void {
    requestAnimationFrame(() => this.#view.load());
  }

  protected override onActivateRequest(): void {
    if (!this.node.contains(document.activeElement)) this.node.focus();
  }

  /** Load at the next turn, if the page is seen; it loads anyway when it comes into sight. */
  #soon(): void {
    if (!this.isVisible || this.#timer !== undefined) return;
    const wait = Math.max(0, this.#due - Date.now());
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      this.#due = Date.now() + PACE;
      this.#view.load();
    }, wait);
  }

  #host(): CompareHost {
    const { api } = this.distdl;
    return {
      load: (ids, request) => api.compare({ ids, ...request }),
      jobs: async () => (await api.jobs({ limit: OFFERED })).jobs,
      open: (id) => void this.app.commands.execute(OPEN_JOB, { id }),
      changed: (state) => this.#keep(state),
    };
  }

  #keep(state: CompareState): void {
    this.#state = state;
    this.#retitle();
    this.#changed.emit();
  }

  #retitle(): void {
    this.title.label = _n('Compare %1 job', 'Compare %1 jobs', this.#state.ids.length);
  }
}
