/**
 * A sweep: progress, the best value with its parameters, the curves of all trials, and a table of the trials, best first. The server computes all values (`views/sweep.py`).
 *
 * It polls while the sweep runs and the panel is visible. It knows neither JupyterLab nor HTTP: a `SweepHost` does.
 */
import { copy } from '../ui/clipboard';
import { adopt, fill, h, onClick, setText, show, type Child } from '../ui/dom';
import { count, duration, number, stateWord, tickLabels, type State } from '../ui/format';
import { icon } from '../ui/icons';
import { InlineConfirm } from '../ui/inlineconfirm';
import { explained } from '../ui/refusal';
import { drawing, element, figure, line, text } from '../ui/svg';
import { __, _n } from '../ui/trans';
import type { components } from '../api/schema';
import { button } from './header';

export type Sweep = components['schemas']['SweepPanel'];
type Trial = Sweep['trials'][number];

export interface SweepHost {
  /** Return the current state of the sweep; rejects if it does not exist or the server does not respond. */
  read(): Promise<Sweep>;
  /** Each of these rejects with the reason. */
  stop(): Promise<Sweep>;
  resume(): Promise<Sweep>;
  /** Start a job with the best values, and show it. */
  runBest(processes: number): Promise<void>;
  /** Show the job of a trial. */
  openJob(id: string): void;
  /** Show its page; left out where this is one. */
  open?(): void;
  /** Put code into a new cell below; left out where there is none. */
  insert?(code: string): void;
}

/** Rows that are shown at first. */
const ROWS = 10;
const ENDED = new Set(['completed', 'pruned', 'failed', 'canceled', 'lost']);
const [WIDE, HIGH] = [694, 280];

/** Poll interval in milliseconds while it runs. */
const PACE = 1500;

export interface SweepOptions {
  /** It was read. */
  changed?: (sweep: Sweep) => void;
  /** It could not be read for the first time. */
  gone?: (error: unknown) => void;
}

/** Polls a sweep while it runs and its element is visible. */
class SweepReader {
  #newest: Sweep | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #reading = false;
  #ended = false;

  /** `read` rejects if the sweep does not exist or the server does not respond; `draw` receives the previous state, null at first. */
  constructor(
    private readonly root: HTMLElement,
    private readonly read: () => Promise<Sweep>,
    private readonly draw: (sweep: Sweep, before: Sweep | null) => void,
    private readonly options: SweepOptions,
  ) {
    void this.#ask();
  }

  /** The newest state, null before the first. */
  get newest(): Sweep | null {
    return this.#newest;
  }

  /** Poll now, because the view became visible or something has changed. */
  refresh(): void {
    clearTimeout(this.#timer);
    void this.#ask();
  }

  dispose(): void {
    this.#ended = true;
    clearTimeout(this.#timer);
  }

  async #ask(): Promise<void> {
    if (this.#reading || this.#ended) return;
    this.#reading = true;
    try {
      const sweep = await this.read();
      if (!this.#ended) this.#take(sweep);
    } catch (error) {
      if (!this.#newest && !this.#ended) this.options.gone?.(error);
    }
    this.#reading = false;
    this.#next();
  }

  #next(): void {
    clearTimeout(this.#timer);
    if (this.#ended || (this.#newest && this.#newest.state !== 'running')) return;
    this.#timer = setTimeout(() => (this.root.isConnected && this.root.offsetParent ? void this.#ask() : this.#next()), PACE);
  }

  #take(sweep: Sweep): void {
    const before = this.#newest;
    this.#newest = sweep;
    this.draw(sweep, before);
    this.options.changed?.(sweep);
  }
}

export class SweepView {
  readonly #head = h('div', { class: 'dd-head' });
  readonly #question = h('div', { hidden: true });
  readonly #problem = h('div', { class: 'dd-s12 dd-ink-err dd-sweepproblem', role: 'alert', hidden: true });
  readonly #progress = h('div', { class: 'dd-sweepprogress' });
  readonly #best = h('div', { class: 'dd-sweepbest', hidden: true });
  readonly #curves = h('div', { class: 'dd-sweepcard dd-sweepcurves' });
  readonly #table = h('div', { class: 'dd-sweepcard dd-sweeptrials' });
  readonly #live = h('div', { class: 'dd-sr', role: 'status', 'aria-live': 'polite' });
  readonly #reader: SweepReader;
  #log = false;
  #all = false;
  #refused: unknown = '';

  constructor(private readonly root: HTMLElement, private readonly host: SweepHost, options: SweepOptions = {}) {
    adopt(root, 'dd-sweep');
    root.setAttribute('role', 'region');
    root.append(this.#head, this.#question, this.#problem, this.#progress, this.#best, this.#curves, this.#table, this.#live);
    this.#reader = new SweepReader(root, () => host.read(), (sweep, before) => this.#take(sweep, before), options);
  }

  /** The newest state, null before the first. */
  get message(): Sweep | null {
    return this.#reader.newest;
  }

  /** Poll now, because the view became visible or something has changed. */
  refresh(): void {
    this.#reader.refresh();
  }

  dispose(): void {
    this.#reader.dispose();
  }

  #take(sweep: Sweep, before: Sweep | null): void {
    const title = __('Sweep of %1', sweep.name);
    this.root.setAttribute('aria-label', title);
    if (before && before.state !== sweep.state) setText(this.#live, `${title}: ${stateWord(sweep.state)}`);
    this.#draw(sweep);
  }

  #draw(sweep: Sweep): void {
    const key = (...parts: unknown[]): string => JSON.stringify(parts);
    fill(this.#head, key(sweep.state, sweep.settings), () => this.#drawHead(sweep));
    fill(this.#problem, key(String(this.#refused), sweep.problem, sweep.remedy), () => (this.#refused ? explained(this.#refused) : explained(sweep.problem, sweep.remedy)));
    show(this.#problem, Boolean(this.#refused) || sweep.problem !== '');
    fill(this.#progress, key(sweep.done, sweep.size, sweep.state, sweep.trials.map(({ state }) => state), Math.round(sweep.elapsed), Math.round(sweep.remaining ?? -1)), () => progressOf(sweep));
    const best = bestOf(sweep);
    show(this.#best, best !== null);
    fill(this.#best, key(best?.number, best?.value, sweep.state, sweep.processes), () => (best ? this.#drawBest(sweep, best) : []));
    const drawn = key(sweep.trials, sweep.best, this.#log);
    show(this.#curves, sweep.trials.length > 0);
    show(this.#table, sweep.trials.length > 0);
    fill(this.#curves, drawn, () => this.#drawCurves(sweep));
    fill(this.#table, key(sweep.trials, sweep.best, this.#all), () => this.#drawTable(sweep));
  }

  #redraw(): void {
    if (this.message) this.#draw(this.message);
  }

  #drawHead(sweep: Sweep): Child[] {
    const open = button('open', __('Open page'), '');
    onClick(open, () => this.host.open?.());
    const stop = button('stop', __('Stop sweep'), 'dd-danger');
    onClick(stop, () => void this.#ask());
    const resume = button('resume', __('Continue'), '');
    onClick(resume, () => void this.#do(this.host.resume()));
    const goesOn = sweep.state === 'running';
    const canResume = !goesOn && sweep.done < sweep.size;
    const top = h('div', { class: 'dd-row dd-top' }, ...identityOf(sweep, __('Sweep of %1', sweep.name)), h('span', { class: 'dd-grow' }), this.host.open ? open : null, canResume ? resume : null, goesOn ? stop : null);
    return [top, h('div', { class: 'dd-dots dd-sub dd-s12 dd-num' }, ...sweep.settings.map((word) => h('span', {}, word)))];
  }

  async #ask(): Promise<void> {
    const running = this.message?.trials.filter(({ state }) => !ENDED.has(state)).length ?? 0;
    const text = running ? _n('Stop the sweep and cancel its running trial?', 'Stop the sweep and cancel its %1 running trials?', running) : __('Stop the sweep?');
    const question = new InlineConfirm(text);
    this.#question.replaceChildren(question.element);
    show(this.#question, true);
    question.focus();
    const yes = await question.answered;
    show(this.#question, false);
    if (yes) await this.#do(this.host.stop());
  }

  async #do(answer: Promise<unknown>): Promise<void> {
    this.#refused = '';
    try {
      await answer;
    } catch (error) {
      this.#refused = error;
      this.#redraw();
    }
    this.refresh();
  }

  #drawBest(sweep: Sweep, best: Trial): Child[] {
    const values = sweep.parameters.flatMap((name, at) => [at === 0 ? '' : ', ', h('span', { class: 'dd-b' }, `${name} ${wordOf(best.params[name])}`)]);
    const said_ = h('span', { class: 'dd-grow' }, h('span', { class: 'dd-sub' }, __('with'), ' '), ...values);
    const insert = this.host.insert;
    const put = insert ? onClick(button('cell', __('Insert values'), ''), () => insert(sweep.code)) : null;
    const label = _n('Run the best on %1 process', 'Run the best on %1 processes', sweep.processes);
    const run = onClick(button('ranks', label, 'dd-primary'), () => void this.#do(this.host.runBest(sweep.processes)));
    const head = sweep.state === 'running' ? __('Best so far') : __('Best');
    const value = h('span', { class: 'dd-sweepvalue dd-num' }, number(best.value ?? Number.NaN));
    return [h('span', { class: 'dd-sub' }, head), value, h('span', { class: 'dd-sub dd-nw' }, __('%1, trial %2', sweep.metric, best.number)), said_, put, run];
  }

  #drawCurves(sweep: Sweep): Child[] {
    const log = h('button', { type: 'button', class: 'dd-btn dd-small', 'aria-pressed': String(this.#log) }, __('Log'));
    onClick(log, () => {
      this.#log = !this.#log;
      this.#redraw();
    });
    const isPruned = sweep.trials.some(({ state }) => state === 'pruned');
    const cut = h('span', { class: 'dd-row dd-s12 dd-sub dd-nw' }, drawing(10, 10, [line('M2 2l6 6m0 -6l-6 6', 'dd-sweepcut')]), __('pruned here'));
    const positive = sweep.trials.every(({ points }) => points.every(([, mean]) => mean > 0));
    return [h('div', { class: 'dd-part dd-sweephead' }, h('h3', { class: 'dd-h3 dd-grow dd-ell' }, sweep.metric), ...keysOf(sweep), isPruned ? cut : null, positive ? log : null), curvesOf(sweep, this.#log && positive)];
  }

  #drawTable(sweep: Sweep): Child[] {
    const rows = button('copy', __('Copy as table'), 'dd-small');
    onClick(rows, () => void copy(asTable(sweep), rows));
    const more = h('button', { type: 'button', class: 'dd-btn dd-small' }, __('Show all %1', count(sweep.trials.length)));
    onClick(more, () => {
      this.#all = true;
      this.#redraw();
    });
    const shown = this.#all ? sweep.trials : sweep.trials.slice(0, ROWS);
    const head = h('div', { class: 'dd-part' }, h('h3', { class: 'dd-h3' }, __('Trials')), h('span', { class: 'dd-sub dd-s12 dd-ell' }, __('sorted by %1', sweep.metric)), h('span', { class: 'dd-grow' }), shown.length < sweep.trials.length ? more : null, rows);
    const names = [__('Trial'), sweep.metric, '', ...sweep.parameters, __('Progress'), __('State'), ''];
    const left = (at: number): boolean => at === 2 || at >= names.length - 2;
    const top = h('tr', {}, ...names.map((name, at) => h('th', { class: left(at) ? '' : 'dd-right' }, name)));
    const most = Math.max(...sweep.trials.map(({ value }) => Math.abs(value ?? 0)));
    const body = h('tbody', {}, ...shown.map((trial) => this.#row(sweep, trial, most)));
    return [head, h('div', { class: 'dd-sweeptable dd-s12 dd-num', tabindex: 0, role: 'region', 'aria-label': __('Trials') }, h('table', {}, h('thead', {}, top), body))];
  }

  #row(sweep: Sweep, trial: Trial, most: number): HTMLElement {
    const isBest = trial.number === sweep.best;
    const strong = isBest ? 'dd-right dd-b' : 'dd-right';
    const bar = h('i', { class: 'dd-sweepbar', 'data-look': lookOf(sweep, trial) });
    bar.style.width = `${(80 * Math.abs(trial.value ?? 0)) / (most || 1)}px`;
    const open = h('button', { type: 'button', class: 'dd-btn dd-quiet dd-small', title: __('Open job page') }, String(trial.number));
    onClick(open, () => this.host.openJob(trial.id));
    const state = h('span', { class: 'dd-row dd-nw' }, icon(trial.state === 'pruned' ? 'pruned' : trial.state, 14), trialWord(trial.state));
    const detail = isBest ? h('span', { class: 'dd-tag dd-tag-ok' }, __('best')) : h('span', { class: 'dd-sub' }, trial.state === 'completed' ? '' : trial.message);
    return h(
      'tr',
      { class: [isBest ? 'dd-sweepfirst' : '', ['pruned', 'failed', 'canceled'].includes(trial.state) ? 'dd-sub' : ''].join(' ').trim() },
      h('td', { class: 'dd-right' }, open),
      h('td', { class: strong }, trial.value === null ? '' : number(trial.value)),
      h('td', {}, bar),
      ...sweep.parameters.map((name) => h('td', { class: strong }, wordOf(trial.params[name]))),
      h('td', { class: 'dd-right' }, progressWord(trial)),
      h('td', {}, state),
      h('td', { class: 'dd-ell' }, detail),
    );
  }
}

/** State, title and id, which can be copied. */
function identityOf({ id, state }: Sweep, title: string): Child[] {
  const pill = h('span', { class: 'dd-pill', 'data-state': state }, icon(state, 14), stateWord(state));
  const copied = button('copy', __('Copy id'), 'dd-quiet dd-icon');
  onClick(copied, () => void copy(id, copied));
  return [pill, h('span', { class: 'dd-title dd-ell' }, title), h('span', { class: 'dd-mono dd-sub dd-nw dd-sweepid' }, id), copied];
}

// ---- text ---------------------------------------------------------------------------------------

const bestOf = (sweep: Sweep): Trial | null => sweep.trials.find((trial) => trial.number === sweep.best) ?? null;
const trialWord = (state: Trial['state']): string => (state === 'pruned' ? __('Pruned') : stateWord(state as State));

/** A value of a parameter as Python writes it, in about three digits; a whole number stays one. */
function wordOf(value: unknown): string {
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value !== 'number') return String(value ?? 'None');
  return Number.isInteger(value) && Math.abs(value) < 1e15 ? String(value) : String(Number(value.toPrecision(3)));
}

function progressWord({ done, total }: Trial): string {
  if (done === null) return '';
  return total ? __('%1 of %2', count(done), count(total)) : __('step %1', count(done));
}

/** The trials as a table of a spreadsheet. */
function asTable(sweep: Sweep): string {
  const head = ['trial', 'job', 'state', sweep.metric, ...sweep.parameters];
  return [head, ...sweep.trials.map((one) => [one.number, one.id, one.state, one.value ?? '', ...sweep.parameters.map((name) => one.params[name])])].map((row) => row.join('\t')).join('\n');
}

function progressOf(sweep: Sweep): Child[] {
  const counts = (of: (trial: Trial) => boolean): number => sweep.trials.filter(of).length;
  const [running, pruned] = [counts(({ state }) => !ENDED.has(state)), counts(({ state }) => state === 'pruned')];
  const completed = counts(({ state }) => state === 'completed');
  const failed = sweep.done - pruned - completed;
  const toCome = Math.max(0, sweep.size - sweep.done - running);
  const more = [
    running ? __('%1 running', running) : '',
    pruned ? __('%1 pruned', pruned) : '',
    failed > 0 ? __('%1 without a value', failed) : '',
    toCome ? (sweep.state === 'running' ? __('%1 to come', toCome) : __('%1 not started', toCome)) : '',
  ].filter(Boolean);
  const segments: [string, number][] = [['completed', completed], ['pruned', pruned], ['failed', Math.max(0, failed)], ['running', running], ['', toCome]];
  const bar = h('div', { class: 'dd-sweepsegments', role: 'progressbar', 'aria-valuenow': sweep.done, 'aria-valuemin': 0, 'aria-valuemax': sweep.size });
  for (const [look, number_] of segments) for (let at = 0; at < number_ && bar.children.length < 200; at += 1) bar.append(h('i', { 'data-look': look }));
  const words = h('span', { class: 'dd-dots dd-sub dd-grow' }, ...more.map((word) => h('span', {}, word)));
  const left = sweep.remaining === null ? null : h('span', { class: 'dd-b dd-nw' }, __('about %1 left', duration(sweep.remaining)));
  const elapsed = h('span', { class: 'dd-sub dd-nw' }, sweep.state === 'running' ? __('%1 elapsed', duration(sweep.elapsed)) : duration(sweep.elapsed));
  const total = h('span', { class: 'dd-b dd-nw' }, _n('%2 of %1 trial', '%2 of %1 trials', sweep.size, sweep.done));
  return [h('div', { class: 'dd-row dd-s12 dd-num' }, total, words, elapsed, left), bar];
}

// ---- figures ------------------------------------------------------------------------------------

type Look = 'best' | 'completed' | 'running' | 'pruned' | 'failed';

function lookOf(sweep: Sweep, { number: at, state }: Trial): Look {
  if (at === sweep.best) return 'best';
  if (state === 'completed' || state === 'pruned') return state;
  return ENDED.has(state) ? 'failed' : 'running';
}

/** The trials in the order in which they are drawn: the best last. */
function inOrder(sweep: Sweep): Trial[] {
  const order: Look[] = ['failed', 'pruned', 'completed', 'running', 'best'];
  return [...sweep.trials].sort((a, b) => order.indexOf(lookOf(sweep, a)) - order.indexOf(lookOf(sweep, b)));
}

/** How the lines look of the states that trials are in. */
function keysOf(sweep: Sweep): HTMLElement[] {
  const words: Record<Look, string> = { best: __('best'), completed: __('completed'), running: __('running'), pruned: __('pruned'), failed: __('without a value') };
  const present = new Set(sweep.trials.map((trial) => lookOf(sweep, trial)));
  const looks = (Object.keys(words) as Look[]).filter((look) => present.has(look));
  return looks.map((look) => h('span', { class: 'dd-sweepkey dd-row dd-s12 dd-nw' }, drawing(18, 8, [line('M1 4H17', 'dd-sweepline dd-sweepcurve', { 'data-look': look })]), words[look]));
}

const labelsOf = (marks: number[], log: boolean): string[] => (log ? marks.map(wordOf) : tickLabels(marks));

/** Round values within a range, evenly on a logarithmic axis: powers of ten, with 2 and 5 of each where there are few. */
function decades(low: number, high: number): number[] {
  const found: number[] = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1e-9; power += 1) for (const digit of [1, 2, 5]) found.push(Number(`${digit}e${power}`));
  const within = found.filter((value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
  const powers = within.filter((_, at) => String(within[at]?.toExponential()).startsWith('1e'));
  const marks = powers.length > 2 ? powers : within;
  return marks.length > 1 ? marks : [low, high];
}

/** Round values within a range, about so many. */
function evenly(low: number, high: number, about: number): number[] {
  const rough = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((one) => one * power >= rough) ?? 10);
  const found: number[] = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(Number((at * step).toPrecision(12)));
  return found;
}

function curvesOf(sweep: Sweep, log: boolean): SVGSVGElement {
  const drawn = inOrder(sweep).filter(({ points }) => points.length);
  const [left, right, top, bottom] = [48, 58, 12, 26];
  const steps = drawn.flatMap(({ points }) => points.map(([step]) => step));
  const values = drawn.flatMap(({ points }) => points.map(([, mean]) => mean));
  if (!steps.length) return figure(WIDE, HIGH, [text(WIDE / 2, HIGH / 2, __('Nothing was reported yet.'), 'middle')], 'dd-sweepplot', __('Nothing was reported yet.'));
  const by = (value: number): number => (log ? Math.log10(value) : value);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const [lowest, highest] = [Math.min(...values), Math.max(...values)];
  const [from, to] = [by(lowest), by(highest)];
  const x = (step: number): number => left + ((step - first) / (last - first || 1)) * (WIDE - left - right);
  const y = (value: number): number => top + (1 - (by(value) - from) / (to - from || 1)) * (HIGH - top - bottom);
  const marks = log ? decades(lowest, highest) : evenly(lowest, highest, 4);
  const labels = labelsOf(marks, log);
  const grid = marks.flatMap((value, at) => [line(`M${left} ${y(value)}H${WIDE - right}`, 'dd-sweepgrid'), text(left - 7, y(value) + 4, labels[at] ?? '', 'end')]);
  const ticks = evenly(first, last, 4).map((step, at, all) => text(x(step), HIGH - 8, at === all.length - 1 ? __('step %1', count(step)) : count(step), 'middle'));
  const lines = drawn.flatMap((trial) => {
    const look = lookOf(sweep, trial);
    const places = trial.points.map(([step, mean]): [number, number] => [x(step), y(mean)]);
    const [endX, endY] = places.at(-1) ?? [0, 0];
    const curve = line(`M${places.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join('L')}`, 'dd-sweepline dd-sweepcurve', { 'data-look': look });
    curve.append(titled(__('Trial %1', trial.number)));
    if (trial.state === 'pruned') return [curve, line(`M${endX - 3} ${endY - 3}l6 6m0 -6l-6 6`, 'dd-sweepcut')];
    if (look === 'running') return [curve, element('circle', { cx: endX, cy: endY, r: 3, class: 'dd-sweepdot', 'data-look': look })];
    if (look !== 'best') return [curve];
    return [curve, element('circle', { cx: endX, cy: endY, r: 3, class: 'dd-sweepdot' }), text(endX + 7, endY + 4, number(trial.points.at(-1)?.[1] ?? 0), 'start', 'dd-sweepmark')];
  });
  const axis = line(`M${left} ${HIGH - bottom}H${WIDE - right}`, 'dd-sweepaxis');
  const best = bestOf(sweep);
  const spoken = best ? __('%1 of all trials over their steps; trial %2 is best with %3', sweep.metric, best.number, number(best.value ?? 0)) : __('%1 of all trials over their steps', sweep.metric);
  return figure(WIDE, HIGH, [...grid, axis, ...ticks, ...lines], 'dd-sweepplot', spoken);
}

// ---- shapes -------------------------------------------------------------------------------------

function titled(words: string): SVGElement {
  const found = element('title', {});
  found.textContent = words;
  return found;
}
