/**
 * Several jobs compared: their curves in one figure, and what was asked and came of each side by side.
 *
 * Each job has a colour and a dash of its own, the same in the figure (made by the server) and over its column. It knows
 * no JupyterLab; a `CompareHost` brings the jobs.
 */
import { copy } from '../ui/clipboard';
import { arrowKeys, assign, fill, h, onClick, setText, show, tabPanel, type Child } from '../ui/dom';
import { button } from './header';
import { icon } from '../ui/icons';
import { explained, sentences } from '../ui/refusal';
import { __, _n } from '../ui/trans';
import { press } from './picker';
import { inTheme, Plot } from './plotly';
import type { components } from '../api/schema';
import { watchTheme } from '../ui/theme';
import { ENDED, shortId, stateWord } from '../ui/format';

/** One line of jobs side by side: a value for each job ("" where it has none), and which of them is the best. */
export type ComparisonRow = components['schemas']['ComparisonRow'];

export type Comparison = components['schemas']['Comparison'];
type ComparedJob = Comparison['jobs'][number];

export interface CompareChoice {
  metric: string;
  against: 'step' | 'elapsed';
  log: boolean;
}

export interface CompareRequest extends CompareChoice {
  width: number;
  height: number;
}

/** What of the page outlives a reload of the browser. */
export interface CompareState extends CompareChoice {
  ids: string[];
  onlyDiffering: boolean;
}

export interface CompareHost {
  load(ids: string[], request: CompareRequest): Promise<Comparison>;
  /** Jobs that can be added, newest first. */
  jobs(): Promise<ComparedJob[]>;
  open(id: string): void;
  changed(state: CompareState, jobs: ComparedJob[]): void;
}

const NAMESPACE = 'http://www.w3.org/2000/svg';
/** The figure's dashes as a stroke of the same look. */
const DASHES: Record<string, string> = { dash: '6 3', dot: '2 3', dashdot: '7 2 2 2', longdash: '10 4', longdashdot: '9 2 2 2' };

export class ComparisonView {
  #state: CompareState;
  #shown: Comparison | null = null;
  /** Number of the newest question, so that a late answer to an older one is dropped. */
  #asked = 0;
  readonly #title = h('h1', { class: 'dd-pagetitle dd-ell' });
  readonly #names = h('span', { class: 'dd-sub dd-ell' });
  readonly #add = button('plus', __('Add job'), 'dd-tool');
  readonly #copy = button('copy', __('Copy as table'), 'dd-tool');
  readonly #problem = h('div', { class: 'dd-unreached dd-row', role: 'alert', hidden: true });
  readonly #list = h('div', { class: 'dd-addlist', role: 'listbox', 'aria-label': __('Jobs'), hidden: true });
  readonly #metrics = h('div', { class: 'dd-pagetabs dd-comparetabs', role: 'tablist', 'aria-label': __('Metric') });
  readonly #step = h('button', { type: 'button', role: 'radio' }, __('Step'));
  readonly #elapsed = h('button', { type: 'button', role: 'radio' }, __('Elapsed'));
  readonly #against = h('span', { class: 'dd-seg', role: 'radiogroup', 'aria-label': __('Against') }, this.#step, this.#elapsed);
  readonly #log = h('button', { type: 'button', title: __('Logarithmic scale') }, 'Log');
  readonly #tableButton = button('table', __('Table'), 'dd-quiet dd-icon');
  readonly #values = h('div', { class: 'dd-table', tabindex: 0, role: 'region', 'aria-label': __('Values as a table'), hidden: true });
  readonly #zoom = button('zoom', __('Zoom'), 'dd-quiet dd-icon');
  readonly #area = h('div', { class: 'dd-plot', role: 'img' });
  readonly #panel = tabPanel(__('Curve'), this.#area);
  readonly #curveBox: HTMLElement;
  readonly #plot = new Plot(this.#area);
  readonly #only = h('input', { type: 'checkbox' });
  readonly #table = h('div', { class: 'dd-tablebox' });
  readonly #sideBox: HTMLElement;
  readonly #unwatch: () => void;
  readonly #observer = new ResizeObserver(() => this.#resized());
  #drawnFor = 0;

  constructor(private readonly root: HTMLElement, private readonly host: CompareHost, state: CompareState) {
    root.classList.add('dd', 'dd-page', 'dd-comparing');
    this.#state = state;
    this.#only.checked = state.onlyDiffering;
    const grow = (): HTMLElement => h('span', { class: 'dd-grow' });
    const adding = h('span', { class: 'dd-adding' }, this.#add, this.#list);
    const head = h('div', { class: 'dd-row dd-comparehead' }, this.#title, this.#names, grow(), adding, this.#copy);
    const controls = [h('span', { class: 'dd-sub dd-nw dd-againstword' }, __('against')), this.#against, h('span', { class: 'dd-seg' }, this.#log), this.#tableButton, this.#zoom];
    this.#curveBox = h('section', { class: 'dd-box dd-curvebox' }, h('div', { class: 'dd-part' }, this.#metrics, grow(), ...controls), this.#panel, this.#values);
    const only = h('label', { class: 'dd-row dd-s12 dd-only' }, this.#only, __('Differences only'));
    const legend = h('span', { class: 'dd-row dd-sub dd-s12' }, h('i', { class: 'dd-differsign' }), __('differs'));
    this.#sideBox = h('section', { class: 'dd-box' }, h('div', { class: 'dd-part dd-low' }, h('h3', { class: 'dd-h3' }, __('Side by side')), legend, grow(), only), this.#table);
    root.append(head, h('div', { class: 'dd-pagebody' }, this.#problem, this.#curveBox, this.#sideBox));
    show(this.#sideBox, false);
    this.#connect();
    this.#unwatch = watchTheme(document.body, () => this.#drawTable());
    this.#observer.observe(this.#area);
    this.#drawHead();
    this.load();
  }

  get ids(): readonly string[] {
    return this.#state.ids;
  }

  /** Whether a compared job is still running. */
  get living(): boolean {
    return this.#shown === null || this.#shown.jobs.some((job) => !ENDED.has(job.state));
  }

  /** Ask for the newest state and show it; what was shown stays until it is there. */
  load(): void {
    const asked = (this.#asked += 1);
    const { metric, against, log, ids } = this.#state;
    if (!ids.length) return this.#show(null);
    const [width, height] = [this.#area.clientWidth, this.#area.clientHeight];
    if (width < 50 || height < 50) return;
    this.#drawnFor = width;
    this.host.load(ids, { metric, against, log, width, height }).then(
      (comparison) => {
        if (asked === this.#asked) this.#show(comparison);
      },
      (error: unknown) => {
        if (asked === this.#asked) this.#complain(error);
      },
    );
  }

  dispose(): void {
    this.#unwatch();
    this.#observer.disconnect();
    this.#plot.dispose();
  }

  #connect(): void {
    onClick(this.#step, () => this.#choose({ against: 'step' }));
    onClick(this.#elapsed, () => this.#choose({ against: 'elapsed' }));
    onClick(this.#log, () => this.#choose({ log: !this.#state.log }));
    onClick(this.#zoom, () => void this.root.classList.toggle('dd-zoomed', press(this.#zoom)));
    onClick(this.#tableButton, () => show(this.#values, press(this.#tableButton)));
    onClick(this.#copy, () => void copy(this.#shown ? markdown(this.#shown, this.#rows()) : '', this.#copy));
    onClick(this.#add, () => void this.toggleList());
    this.#only.addEventListener('change', () => {
      this.#choose({ onlyDiffering: this.#only.checked });
      this.#drawTable();
    });
    arrowKeys(this.#against, () => [this.#step, this.#elapsed], (item) => item.click());
    arrowKeys(this.#metrics, () => [...this.#metrics.children] as HTMLElement[], (item) => item.click());
    arrowKeys(this.#list, () => [...this.#list.children] as HTMLElement[], () => undefined);
    this.#list.addEventListener('keydown', (event) => this.#listKey(event));
    this.#list.parentElement?.addEventListener('focusout', (event) => {
      if (!this.#list.parentElement?.contains(event.relatedTarget as Node | null)) show(this.#list, false);
    });
  }

  #choose(change: Partial<CompareState>): void {
    this.#state = { ...this.#state, ...change };
    this.host.changed(this.#state, this.#shown?.jobs ?? []);
    this.#drawHead();
    this.load();
  }

  #resized(): void {
    if (Math.abs(this.#area.clientWidth - this.#drawnFor) > 60) this.load();
  }

  // ---- drawing ----

  #show(comparison: Comparison | null): void {
    const before = this.#shown;
    this.#shown = comparison;
    show(this.#problem, false);
    if (comparison && JSON.stringify(before?.jobs) !== JSON.stringify(comparison.jobs)) this.host.changed(this.#state, comparison.jobs);
    this.#drawHead();
    this.#drawCurve();
    this.#drawTable();
  }

  #complain(error: unknown): void {
    fill(this.#problem, sentences(error), () => [icon('warn', 16, 'dd-ink-warn'), h('span', { class: 'dd-grow' }, ...explained(error)), onClick(button('', __('Try now'), 'dd-small'), () => this.load())]);
    show(this.#problem, true);
  }

  #drawHead(): void {
    const { against, log, ids } = this.#state;
    setText(this.#title, _n('Compare %1 job', 'Compare %1 jobs', ids.length));
    setText(this.#names, [...new Set(this.#shown?.jobs.map((job) => job.name))].join(', '));
    for (const [item, on] of [[this.#step, against === 'step'], [this.#elapsed, against === 'elapsed']] as const) {
      item.classList.toggle('dd-on', on);
      assign(item, { 'aria-checked': String(on), tabindex: on ? 0 : -1 });
    }
    this.#log.classList.toggle('dd-on', log);
    assign(this.#log, { 'aria-pressed': String(log) });
    this.#copy.disabled = this.#shown === null;
  }

  #drawCurve(): void {
    const comparison = this.#shown;
    const some = (comparison?.metrics.length ?? 0) > 0;
    show(this.#curveBox, comparison === null || some);
    if (!comparison || !some) return;
    fill(this.#metrics, JSON.stringify(comparison.metrics), () => comparison.metrics.map((name) => this.#metricTab(name)));
    for (const tab of this.#metrics.children) {
      const on = tab.getAttribute('data-tab') === comparison.curve.metric;
      assign(tab, { 'aria-selected': String(on), tabindex: on ? 0 : -1 });
    }
    this.#plot.show(comparison.curve);
    assign(this.#area, { 'aria-label': comparison.curve.summary });
    this.#drawValues(comparison);
  }

  #drawValues({ curve, jobs }: Comparison): void {
    const titles = [this.#state.against === 'step' ? __('step') : __('elapsed'), ...jobs.map((job) => `${job.name} ${shortId(job.id)}`)];
    fill(this.#values, JSON.stringify([titles, curve.table]), () => [
      h('table', {}, h('thead', {}, h('tr', {}, ...titles.map((title) => h('th', { scope: 'col' }, title)))),
        h('tbody', {}, ...curve.table.map((row) => h('tr', {}, ...row.map((text) => h('td', {}, text)))))),
    ]);
  }

  #metricTab(name: string): HTMLElement {
    const tab = h('button', { type: 'button', role: 'tab', 'data-tab': name, title: name, 'aria-controls': this.#panel.id }, h('span', { class: 'dd-ell', 'data-word': name }, name));
    return onClick(tab, () => this.#choose({ metric: name }));
  }

  #rows(): ComparisonRow[] {
    return (this.#shown?.rows ?? []).filter((row) => row.differs || !this.#state.onlyDiffering);
  }

  #drawTable(): void {
    const comparison = this.#shown;
    const rows = this.#rows();
    show(this.#sideBox, comparison !== null);
    const strokes = comparison?.jobs.map((_job, at) => lineOf(comparison, at));
    fill(this.#table, JSON.stringify([comparison?.jobs.map(({ id, name, state }) => [id, name, state]), strokes, rows]), () => (comparison ? [this.#sideBySide(comparison, rows)] : []));
  }

  #sideBySide({ jobs }: Comparison, rows: ComparisonRow[]): HTMLElement {
    const head = h('tr', {}, h('th', { scope: 'col' }, h('span', { class: 'dd-sr' }, __('Field'))), ...jobs.map((job, at) => this.#column(job, at)));
    const body: HTMLElement[] = [];
    for (const section of ['Spec', 'Result'] as const) {
      const own = rows.filter((row) => row.section === section);
      if (!own.length) continue;
      const word = section === 'Spec' ? __('Spec') : __('Result');
      body.push(h('tr', { class: 'dd-section' }, h('th', { scope: 'colgroup', colspan: jobs.length + 1 }, word)));
      body.push(...own.map((row) => rowElement(row, jobs)));
    }
    return h('table', { class: 'dd-grid dd-side', style: `min-width: ${150 + 170 * jobs.length}px` }, h('thead', {}, head), h('tbody', {}, ...body));
  }

  #column(job: ComparedJob, at: number): HTMLElement {
    const open = h('button', { type: 'button', class: 'dd-link dd-row', title: `${__('Open job page')}: ${job.id}` }, h('b', { class: 'dd-ell' }, job.name), h('span', { class: 'dd-mono dd-sub dd-wide dd-nw' }, job.id), h('span', { class: 'dd-mono dd-sub dd-tight dd-nw' }, shortId(job.id)));
    const away = button('close', __('Remove %1 from the comparison', shortId(job.id)), 'dd-quiet dd-icon dd-away');
    onClick(open, () => this.host.open(job.id));
    onClick(away, () => this.#choose({ ids: this.#state.ids.filter((id) => id !== job.id) }));
    return h('th', { scope: 'col' }, h('span', { class: 'dd-row' }, strokeOf(this.#shown ? lineOf(this.#shown, at) : undefined), open, h('span', { class: 'dd-grow' }), this.#state.ids.length > 1 ? away : null));
  }

  // ---- adding a job ----

  /** Open the list of jobs that can be added, or close it. */
  async toggleList(): Promise<void> {
    if (!this.#list.hidden) return show(this.#list, false);
    const jobs = (await this.host.jobs().catch(() => [])).filter((job) => !this.#state.ids.includes(job.id));
    this.#list.replaceChildren(...(jobs.length ? jobs.map((job, at) => this.#option(job, at)) : [h('div', { class: 'dd-empty dd-sub' }, __('No other job'))]));
    show(this.#list, true);
    (this.#list.firstElementChild as HTMLElement | null)?.focus();
  }

  #option(job: ComparedJob, at: number): HTMLElement {
    const words = [h('b', { class: 'dd-ell' }, job.name), h('span', { class: 'dd-mono dd-sub' }, shortId(job.id)), h('span', { class: 'dd-grow' }), h('span', { class: 'dd-sub dd-s12' }, stateWord(job.state))];
    const option = h('div', { role: 'option', class: 'dd-row dd-option', tabindex: at ? -1 : 0, 'data-state': job.state, title: job.id }, icon(job.state, 14), ...words);
    return onClick(option, () => {
      show(this.#list, false);
      this.#add.focus();
      this.#choose({ ids: [...this.#state.ids, job.id] });
    });
  }

  #listKey(event: KeyboardEvent): void {
    if (event.key === 'Escape') {
      show(this.#list, false);
      this.#add.focus();
    } else if (event.key === 'Enter' || event.key === ' ') (event.target as HTMLElement).click();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

interface Line {
  color?: string;
  dash?: string;
}

/** How a job's line is drawn on this page. */
function lineOf({ curve }: Comparison, at: number): Line | undefined {
  return inTheme((curve.data[at] as { line?: Line } | undefined)?.line);
}

/** A short line in the colour and dash of a job's. */
function strokeOf({ color = 'currentColor', dash = 'solid' }: Line = {}): HTMLElement {
  const svg = document.createElementNS(NAMESPACE, 'svg');
  const line = document.createElementNS(NAMESPACE, 'path');
  assign(svg, { width: 26, height: 10, viewBox: '0 0 26 10', 'aria-hidden': 'true' });
  assign(line, { d: 'M0 5H26', fill: 'none', stroke: color, 'stroke-width': 2.5, 'stroke-dasharray': DASHES[dash] });
  svg.append(line);
  return h('span', {}, svg);
}

function rowElement(row: ComparisonRow, jobs: ComparedJob[]): HTMLElement {
  const cells = row.values.map((value, at) => h('td', { class: at === row.best ? 'dd-b' : '' }, ...cell(row, value, jobs[at], at)));
  return h('tr', { class: row.differs && row.section === 'Spec' ? 'dd-differs' : '' }, h('th', { scope: 'row', title: row.field }, row.label), ...cells);
}

function cell(row: ComparisonRow, value: string, job: ComparedJob | undefined, at: number): Child[] {
  const best = at === row.best ? h('span', { class: 'dd-tag dd-tag-ok' }, __('best')) : null;
  if (row.field === 'state' && job) return [h('span', { class: 'dd-row dd-statecell', 'data-state': job.state }, icon(job.state, 14), h('span', {}, value))];
  return [h('span', { class: 'dd-row' }, h('span', { class: 'dd-value' }, value || '–'), best)];
}

/** The table as Markdown, as a notebook or an issue takes it. */
function markdown({ jobs }: Comparison, rows: ComparisonRow[]): string {
  const clean = (text: string): string => text.replaceAll('\\', '\\\\').replaceAll('|', '\\|').replace(/\s+/g, ' ');
  const line = (cells: string[]): string => `| ${cells.map(clean).join(' | ')} |`;
  const body = rows.map((row) => line([row.label, ...row.values.map((value, at) => (at === row.best ? `**${value}**` : value))]));
  return [line(['', ...jobs.map((job) => `${job.name} ${job.id}`)]), line(['---', ...jobs.map(() => '---')]), ...body].join('\n') + '\n';
}
