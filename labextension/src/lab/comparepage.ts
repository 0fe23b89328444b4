/**
 * Jobs compared, as a document of the main area: their curves of one metric in one figure, and the options that differ.
 *
 * It polls while a job runs and the stream reports a change.
 */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Signal, type ISignal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import type { components } from '../api/schema';
import { comparedFigure } from '../job/figure';
import { button } from '../job/header';
import type { Watch } from '../job/jobview';
import { Plot } from '../job/plotly';
import { arrowKeys, assign, fill, h, onClick, show, tabPanel } from '../ui/dom';
import { count, number, shortId } from '../ui/format';
import { icon } from '../ui/icons';
import { explained, sentences } from '../ui/refusal';
import { __, _n } from '../ui/trans';
import { OPEN_JOB } from './jobpage';
import type { DistDL } from './live';
import { compareIcon } from './stateicons';

type JobComparison = components['schemas']['JobComparison'];

/** Poll interval in milliseconds while a job runs. */
const PACE = 2000;

/** What opens a page again after a reload. */
export interface CompareState {
  ids: string[];
  /** "" is the metric that most jobs report. */
  metric: string;
}

export class ComparePage extends Widget {
  readonly #changed = new Signal<this, void>(this);
  readonly #watch: Watch;
  #state: CompareState;
  /** The list's rows of the jobs that are compared, to see whether one has changed. */
  #rows = '';
  #due = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** Number of the newest request, so that a late answer to an older one is dropped. */
  #request = 0;
  readonly #problem = h('div', { class: 'dd-unreached dd-row', role: 'alert', hidden: true });
  readonly #metrics = h('div', { class: 'dd-pagetabs dd-comparetabs', role: 'tablist', 'aria-label': __('Metric') });
  readonly #area = h('div', { class: 'dd-plot', role: 'img' });
  readonly #panel = tabPanel(__('Curve'), this.#area);
  readonly #curve = h('section', { class: 'dd-box dd-curvebox' }, h('div', { class: 'dd-part' }, this.#metrics), this.#panel);
  readonly #plot = new Plot(this.#area);
  readonly #table = h('div', { class: 'dd-tablebox' });
  readonly #options = h('section', { class: 'dd-box', hidden: true }, h('div', { class: 'dd-part dd-low' }, h('h3', { class: 'dd-h3' }, __('Differences'))), this.#table);

  constructor(private readonly app: JupyterFrontEnd, private readonly distdl: DistDL, state: CompareState) {
    super();
    this.#state = state;
    this.id = `distdl-compare-${state.ids.join('-')}`;
    this.addClass('dd-document');
    this.node.tabIndex = -1;
    this.title.closable = true;
    this.title.icon = compareIcon;
    this.title.label = _n('Compare %1 job', 'Compare %1 jobs', state.ids.length);
    this.node.classList.add('dd', 'dd-page', 'dd-comparing');
    const head = h('div', { class: 'dd-row dd-comparehead' }, h('h1', { class: 'dd-pagetitle dd-ell' }, this.title.label));
    this.node.append(head, h('div', { class: 'dd-pagebody' }, this.#problem, this.#curve, this.#options));
    arrowKeys(this.#metrics, () => [...this.#metrics.children] as HTMLElement[], (item) => item.click());
    this.#watch = distdl.live.watchJobs((rows) => {
      const own = JSON.stringify(rows.filter((row) => state.ids.includes(row.id)));
      if (own !== this.#rows) this.#soon();
      this.#rows = own;
    });
  }

  get state(): CompareState {
    return this.#state;
  }

  get stateChanged(): ISignal<this, void> {
    return this.#changed;
  }

  override dispose(): void {
    if (this.isDisposed) return;
    clearTimeout(this.#timer);
    this.#watch.dispose();
    this.#plot.dispose();
    Signal.clearData(this);
    super.dispose();
  }

  protected override onAfterShow(): void {
    this.#load();
  }

  protected override onAfterAttach(): void {
    requestAnimationFrame(() => this.#load());
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
      this.#load();
    }, wait);
  }

  /** Ask for the newest state and show it; what was shown stays until it is there. */
  #load(): void {
    const request = (this.#request += 1);
    const { ids, metric } = this.#state;
    this.distdl.api.compare({ ids, metric }).then(
      (comparison) => {
        if (request === this.#request && !this.isDisposed) this.#show(comparison);
      },
      (error: unknown) => {
        if (request === this.#request && !this.isDisposed) this.#complain(error);
      },
    );
  }

  #complain(error: unknown): void {
    const again = onClick(button('', __('Try now'), 'dd-small'), () => this.#load());
    fill(this.#problem, sentences(error), () => [icon('warn', 16, 'dd-ink-warn'), h('span', { class: 'dd-grow' }, ...explained(error)), again]);
    show(this.#problem, true);
  }

  #show({ metric, bands, jobs, metrics, rows }: JobComparison): void {
    show(this.#problem, false);
    show(this.#curve, metrics.length > 0);
    fill(this.#metrics, JSON.stringify(metrics), () => metrics.map((name) => this.#metricTab(name)));
    for (const tab of this.#metrics.children) {
      const on = tab.getAttribute('data-tab') === metric;
      assign(tab, { 'aria-selected': String(on), tabindex: on ? 0 : -1 });
    }
    if (metrics.length) this.#plot.show((colours) => comparedFigure(metric, jobs, bands, colours));
    assign(this.#area, { 'aria-label': summary(metric, jobs, bands) });
    show(this.#options, true);
    fill(this.#table, JSON.stringify([jobs.map(({ id, name }) => [id, name]), rows]), () => (rows.length ? [this.#differences({ jobs, rows })] : [h('div', { class: 'dd-empty dd-sub' }, __('No differences'))]));
  }

  #metricTab(name: string): HTMLElement {
    const tab = h('button', { type: 'button', role: 'tab', 'data-tab': name, title: name, 'aria-controls': this.#panel.id }, h('span', { class: 'dd-ell', 'data-word': name }, name));
    return onClick(tab, () => {
      this.#state = { ...this.#state, metric: name };
      this.#changed.emit();
      this.#load();
    });
  }

  #differences({ jobs, rows }: Pick<JobComparison, 'jobs' | 'rows'>): HTMLElement {
    const columns = jobs.map(({ id, name }) => {
      const open = h('button', { type: 'button', class: 'dd-link dd-row', title: `${__('Open job page')}: ${id}` }, h('b', { class: 'dd-ell' }, name), h('span', { class: 'dd-mono dd-sub dd-nw' }, shortId(id)));
      return h('th', { scope: 'col' }, onClick(open, () => void this.app.commands.execute(OPEN_JOB, { id })));
    });
    const head = h('tr', {}, h('th', { scope: 'col' }, h('span', { class: 'dd-sr' }, __('Field'))), ...columns);
    const body = rows.map(({ field, label, values }) => h('tr', {}, h('th', { scope: 'row', title: field }, label), ...values.map((value) => h('td', {}, value || '–'))));
    return h('table', { class: 'dd-grid dd-side', style: `min-width: ${150 + 170 * jobs.length}px` }, h('thead', {}, head), h('tbody', {}, ...body));
  }
}

/** Return where the curves of the jobs end, for those who cannot see them. */
function summary(metric: string, jobs: JobComparison['jobs'], bands: JobComparison['bands']): string {
  const ends = bands.flatMap(({ last, last_step: step }, at) => (last === null ? [] : [__('%1 ends at %2 in step %3', shortId(jobs[at]?.id ?? ''), number(last), count(step))]));
  return `${metric}: ${ends.join(', ') || __('no values yet')}`;
}
