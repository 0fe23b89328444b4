/**
 * A scaling study: how far it is, the figure of rates over processes beside the ideal line, the numbers, what limits them, a
 * forecast, and what an epoch costs where that is known. What is said was worked out by the server (`views/scaling_panel.py`);
 * the page that a notebook keeps draws the same (`saved/scaling.py`).
 *
 * It polls while the study runs and the panel is visible. It knows neither JupyterLab nor HTTP: a `ScalingHost` reads.
 */
import { copy } from '../ui/clipboard';
import { adopt, fill, h, onClick, setText, show, type Child } from '../ui/dom';
import { count, duration, money, number, stateWord } from '../ui/format';
import { icon } from '../ui/icons';
import { sentences } from '../ui/refusal';
import { drawing, element, figure, line, text } from '../ui/svg';
import { __ } from '../ui/trans';
import type { components } from '../api/schema';
import { button } from './header';
import { identityOf, StudyReader, type StudyOptions } from './study';

export type Scaling = components['schemas']['ScalingPanel'];
type Row = Scaling['rows'][number];
type Price = Scaling['prices'][number];

export interface ScalingHost {
  /** Return the study as it is now; rejects when it is not there, or nobody answers. */
  read(): Promise<Scaling>;
  /** Run what is missing; rejects with the reason. */
  resume(): Promise<Scaling>;
  /** Show its page; left out where this is one. */
  open?(): void;
  /** Put code into a new cell below; left out where there is none. */
  insert?(code: string): void;
}

const [WIDTH, HEIGHT] = [438, 344];
const [LEFT, RIGHT, TOP, BOTTOM] = [46, 64, 14, 40];
/** Pixels between the marks of two backends at one number of processes, ticks of an axis, backends that look different. */
const [BESIDE, TICKS, LOOKS] = [14, 7, 4];
/** Pixels between the axis and the fewest processes. */
const INSET = 14;

export class ScalingView {
  readonly #head = h('div', { class: 'dd-head' });
  readonly #problem = h('div', { class: 'dd-s12 dd-ink-err', role: 'alert', hidden: true });
  readonly #figure = h('div', { class: 'dd-scalefigure' });
  readonly #numbers = h('div', { class: 'dd-scalenumbers' });
  readonly #prices = h('div');
  readonly #live = h('div', { class: 'dd-sr', role: 'status', 'aria-live': 'polite' });
  readonly #study: StudyReader<Scaling>;
  #refused = '';

  constructor(private readonly root: HTMLElement, private readonly host: ScalingHost, options: StudyOptions<Scaling> = {}) {
    adopt(root, 'dd-scaling');
    root.setAttribute('role', 'region');
    root.append(this.#head, this.#problem, h('div', { class: 'dd-scalebody' }, this.#figure, this.#numbers), this.#prices, this.#live);
    this.#study = new StudyReader(root, () => host.read(), (scaling, before) => this.#draw(scaling, before), options);
  }

  /** The newest state, null before the first. */
  get message(): Scaling | null {
    return this.#study.newest;
  }

  /** Ask now: it is seen again, or something has changed. */
  refresh(): void {
    this.#study.refresh();
  }

  dispose(): void {
    this.#study.dispose();
  }

  #draw(scaling: Scaling, before: Scaling | null): void {
    const title = __('Scaling of %1', scaling.name);
    this.root.setAttribute('aria-label', title);
    if (before && before.state !== scaling.state) setText(this.#live, `${title}: ${stateWord(scaling.state)}`);
    fill(this.#head, JSON.stringify([scaling.state, scaling.words, scaling.summary]), () => this.#drawHead(scaling, title));
    const problem = this.#refused || scaling.problem;
    setText(this.#problem, problem);
    show(this.#problem, problem !== '');
    fill(this.#figure, JSON.stringify([scaling.rows, scaling.without]), () => figureOf(scaling));
    fill(this.#numbers, JSON.stringify([scaling.rows, scaling.headline, scaling.reason, scaling.detail, scaling.action]), () => [...tableOf(scaling), this.#finding(scaling)]);
    fill(this.#prices, JSON.stringify(scaling.prices), () => (scaling.prices.length ? pricesOf(scaling) : []));
    show(this.root.querySelector<HTMLElement>('.dd-scalebody') ?? this.#figure, scaling.rows.length > 0);
  }

  #drawHead(scaling: Scaling, title: string): Child[] {
    const rows = button('copy', __('Copy as table'), 'dd-quiet');
    onClick(rows, () => void copy(asTable(this.message ?? scaling), rows));
    const open = button('open', __('Open page'), '');
    onClick(open, () => this.host.open?.());
    const resume = scaling.state !== 'running' && scaling.done < scaling.size ? button('resume', __('Continue'), '') : null;
    if (resume) onClick(resume, () => void this.#resume(resume));
    const top = h('div', { class: 'dd-row dd-top' }, ...identityOf(scaling, title), h('span', { class: 'dd-grow' }), scaling.rows.length ? rows : null, this.host.open ? open : null, resume);
    const words = h('div', { class: 'dd-dots dd-sub dd-s12 dd-num dd-grow' }, ...scaling.words.map((word) => h('span', {}, word)));
    return [top, h('div', { class: 'dd-row dd-meta' }, words, h('span', { class: 'dd-s12 dd-num dd-nw' }, scaling.summary))];
  }

  async #resume(pressed: HTMLButtonElement): Promise<void> {
    this.#refused = '';
    pressed.disabled = true;
    try {
      await this.host.resume();
    } catch (error) {
      this.#refused = sentences(error);
      pressed.disabled = false;
    }
    this.refresh();
  }

  #finding({ headline, reason, detail, action, well }: Scaling): HTMLElement | null {
    if (!headline) return null;
    const lines = [h('div', { class: 'dd-title' }, headline), reason ? h('div', {}, reason) : null, detail ? h('div', { class: 'dd-sub' }, detail) : null];
    const insert = this.host.insert;
    let press: HTMLButtonElement | null = null;
    if (action && insert) {
      press = button('ranks', action.action, '');
      onClick(press, () => insert(action.code));
    }
    const mark = well ? icon('completed', 18, 'dd-ink-ok') : icon('warn', 18, 'dd-ink-warn');
    return h('div', { class: 'dd-scalefinding', 'data-level': well ? 'info' : 'warning', role: 'status' }, mark, h('div', { class: 'dd-grow' }, ...lines, press));
  }
}

// ---- words --------------------------------------------------------------------------------------

const share = ({ efficiency, efficiency_error: error }: Pick<Row, 'efficiency' | 'efficiency_error'>): string =>
  error ? __('%1 ± %2 %', Math.round(efficiency), Math.round(error)) : __('%1 %', Math.round(efficiency));
const ms = (seconds: number): string => (seconds < 0.09995 ? (1000 * seconds).toFixed(1) : count(Math.round(1000 * seconds)));
const titleOf = ({ unit }: Scaling): string => (unit === 'samples' ? __('Samples/s') : __('Batches/s'));
const rateOf = (row: Row): string => (row.measured ? number(row.rate) : __('about %1', number(row.rate)));
const backendsOf = ({ rows }: Scaling): string[] => [...new Set(rows.map(({ backend }) => backend))];

/** The numbers as a table of a spreadsheet. */
function asTable({ rows, unit }: Scaling): string {
  const head = ['processes', 'nodes', 'backend', 'measured', `${unit}_per_second`, 'error', 'efficiency_percent', 'own_seconds', 'communication_seconds', 'waiting_seconds', 'batch', 'lr'];
  const lines = rows.map((row) => [row.processes, row.nodes, row.backend, row.measured, row.rate, row.error, row.efficiency, row.own, row.communication, row.waiting, row.batch, row.learning_rate].map((value) => String(value ?? '')).join('\t'));
  return [head.join('\t'), ...lines].join('\n');
}

// ---- table, prices ------------------------------------------------------------------------------

function tableOf(scaling: Scaling): Child[] {
  const backends = backendsOf(scaling);
  const rate = scaling.rows.some((row) => row.learning_rate !== null);
  const names = [__('Processes'), '', titleOf(scaling), __('Efficiency'), __('Own work'), __('Communication'), __('Waiting'), __('Batch'), ...(rate ? ['lr'] : [])];
  const head = h('tr', {}, ...names.map((name, at) => h('th', { class: at === 1 ? '' : 'dd-right' }, name)));
  const rows = scaling.rows.map((row, at) => tableRow(row, scaling.rows[at - 1], backends, rate));
  const table = h('table', {}, h('thead', {}, head), h('tbody', {}, ...rows));
  return [h('div', { class: 'dd-scaletable dd-s12 dd-num', tabindex: 0, role: 'region', 'aria-label': __('Values as a table') }, table), h('div', { class: 'dd-scalenote dd-sub' }, scaling.note)];
}

function tableRow(row: Row, before: Row | undefined, backends: string[], rate: boolean): HTMLElement {
  const again = before?.processes === row.processes && before.measured === row.measured;
  const parts = (['own', 'communication', 'waiting'] as const).map((part) => h('td', { class: part === row.slow ? 'dd-right dd-b dd-ink-warn' : 'dd-right' }, ms(row[part])));
  const name = h('span', { class: 'dd-row' }, mark(backends.indexOf(row.backend), !row.measured), row.measured ? row.backend : __('forecast'));
  return h(
    'tr',
    { class: row.measured ? (row.slow ? 'dd-oddrow' : '') : 'dd-sub' },
    h('td', { class: row.measured ? 'dd-right dd-b' : 'dd-right' }, again ? '' : count(row.processes)),
    h('td', {}, name),
    h('td', { class: 'dd-right', title: __('± %1', number(row.error)) }, rateOf(row)),
    h('td', { class: row.slow ? 'dd-right dd-b' : 'dd-right' }, share(row)),
    ...parts,
    h('td', { class: 'dd-right' }, row.batch === null ? '' : count(Math.round(row.batch))),
    rate ? h('td', { class: 'dd-right' }, row.learning_rate === null ? '' : String(Number(row.learning_rate.toPrecision(4)))) : null,
  );
}

function pricesOf({ prices, price_title: title, price_notes: notes }: Scaling): Child[] {
  const head = h('div', { class: 'dd-part dd-scaleprice' }, h('h3', { class: 'dd-h3 dd-nw' }, __('Price of one epoch')), h('span', { class: 'dd-sub dd-s12' }, title), h('span', { class: 'dd-grow' }), h('span', { class: 'dd-sub dd-s12' }, notes.join(' ')));
  const most = Math.max(...prices.map(({ high }) => high));
  const names: [string, boolean][] = [[__('Size'), false], [__('Nodes'), false], [__('Between nodes'), false], [__('Efficiency'), true], [__('One epoch'), true], [__('An hour'), true], [__('An epoch, with range'), false], ['', true]];
  const top = h('tr', {}, ...names.map(([name, right]) => h('th', { class: right ? 'dd-right' : '' }, name)));
  const table = h('table', {}, h('thead', {}, top), h('tbody', {}, ...prices.map((price) => priceRow(price, most))));
  return [head, h('div', { class: 'dd-scaletable dd-s12 dd-num' }, table)];
}

function priceRow(price: Price, most: number): HTMLElement {
  const bar = h('span', { class: 'dd-scalecost' }, h('i', {}), h('i', {}));
  const [fillOf, range] = [...bar.children] as [HTMLElement, HTMLElement];
  fillOf.style.width = `${(100 * price.cost) / most}%`;
  range.style.left = `${(100 * price.low) / most}%`;
  range.style.width = `${(100 * (price.high - price.low)) / most}%`;
  const cost = `${Number(price.cost.toPrecision(3))} ${price.currency}`;
  const network = h('td', {}, price.infiniband ? h('span', { class: 'dd-tag dd-tag-ok' }, price.network) : price.network, ' ', h('span', { class: 'dd-sub' }, price.speed));
  return h(
    'tr',
    { class: price.lowest ? 'dd-lowest' : '' },
    h('td', { class: 'dd-b' }, price.size),
    h('td', {}, price.devices),
    network,
    h('td', { class: 'dd-right dd-sub' }, share(price)),
    h('td', { class: 'dd-right dd-sub' }, price.seconds < 1 ? __('%1 s', Number(price.seconds.toPrecision(2))) : duration(price.seconds)),
    h('td', { class: 'dd-right' }, money(price.per_hour, price.currency)),
    h('td', {}, bar),
    h('td', { class: price.lowest ? 'dd-right dd-b' : 'dd-right' }, cost, price.lowest ? h('span', { class: 'dd-tag dd-tag-ok' }, __('lowest')) : null),
  );
}

// ---- figure -------------------------------------------------------------------------------------

/** From numbers of processes and rates to pixels: both axes double, so the ideal line is straight. */
interface Frame {
  x(processes: number): number;
  y(rate: number): number;
}

function figureOf(scaling: Scaling): Child[] {
  const backends = backendsOf(scaling);
  const ahead = scaling.rows.some((row) => !row.measured);
  const keys = backends.map((name, at) => h('span', { class: 'dd-row dd-s12 dd-nw' }, mark(at, false), name));
  const dotted = ahead ? [h('span', { class: 'dd-row dd-s12 dd-nw' }, drawing(18, 8, [line('M1 4H17', 'dd-scaleline dd-scale-0 dd-dotted')]), __('forecast'))] : [];
  const head = h('div', { class: 'dd-part dd-scalehead' }, h('h3', { class: 'dd-h3 dd-grow' }, titleOf(scaling)), ...keys, ...dotted);
  return scaling.rows.length ? [head, plot(scaling, backends)] : [];
}

function plot(scaling: Scaling, backends: string[]): SVGSVGElement {
  const { rows } = scaling;
  const counts = [...new Set(rows.map(({ processes }) => processes))].sort((a, b) => a - b);
  const [first = 1, last = 1] = [counts[0], counts.at(-1)];
  const ideal = scaling.ideal ?? 1;
  const lowest = Math.min(...rows.map(({ rate, error }) => Math.max(rate - error, rate / 2)));
  const highest = Math.max(ideal * last, ...rows.map(({ rate, error }) => rate + error));
  const ticks = ticksOf(lowest * 0.85, highest);
  const alone = counts.length === 1 ? 1 : 0;
  const frame = frameOf(Math.log2(first) - alone, Math.log2(last) + alone, Math.log2(ticks[0] ?? 1), Math.log2(1.1 * Math.max(ticks.at(-1) ?? 1, highest)));
  const lines = backends.map((backend, at) => {
    const own = rows.filter((row) => row.backend === backend);
    return [...forecastOf(at, own, frame), ...measuredOf(at, backends.length, own, frame)];
  });
  const parts = [...ground(rows, frame), ...axes(counts, ticks, frame), ...idealOf(ideal, counts, frame), ...lines.reverse().flat(), ...labels(scaling, backends, frame), ...without(scaling, frame)];
  return figure(WIDTH, HEIGHT, parts, 'dd-scaleplot', spokenOf(scaling));
}

function spokenOf(scaling: Scaling): string {
  const each = scaling.rows.map((row) => __('%1 with %2 processes of %3, %4 of ideal', rateOf(row), count(row.processes), row.backend, share(row)));
  return `${titleOf(scaling)}: ${each.join('; ')}`;
}

function frameOf(first: number, last: number, low: number, high: number): Frame {
  const within = (part: number): number => Math.max(0, Math.min(1, part));
  return {
    x: (processes) => LEFT + INSET + ((Math.log2(processes) - first) / Math.max(last - first, 1e-9)) * (WIDTH - LEFT - INSET - RIGHT),
    y: (rate) => TOP + (1 - within((Math.log2(Math.max(rate, 1e-12)) - low) / (high - low))) * (HEIGHT - TOP - BOTTOM),
  };
}

/** Rates that double from a round one below `low` to one not above `high`. */
function ticksOf(low: number, high: number): number[] {
  const power = 10 ** Math.floor(Math.log10(low));
  const ticks = [Math.max(...[1, 2, 5].map((one) => one * power).filter((one) => one <= low))];
  while ((ticks.at(-1) ?? high) * 2 <= high) ticks.push((ticks.at(-1) ?? 1) * 2);
  const every = Math.ceil(ticks.length / TICKS);
  return ticks.filter((_, at) => at % every === 0);
}

function tickWord(value: number): string {
  if (value >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  return value >= 1e3 ? `${Number((value / 1e3).toPrecision(4))}k` : String(Number(value.toPrecision(4)));
}

function ground(rows: Row[], frame: Frame): SVGElement[] {
  const known = rows.filter((row) => row.measured).map((row) => row.processes);
  const after = rows.filter((row) => !row.measured).map((row) => row.processes);
  if (!known.length || !after.length) return [];
  const from = frame.x(Math.max(...known));
  const x = from + 0.35 * (frame.x(Math.min(...after)) - from);
  const base = HEIGHT - BOTTOM;
  return [
    element('rect', { x, y: TOP, width: WIDTH - RIGHT - x, height: base - TOP, class: 'dd-scaleahead' }),
    line(`M${x} ${TOP}V${base}`, 'dd-scaleparting'),
    text(x - 6, base - 8, __('measured'), 'end', 'dd-scaleknown'),
    text(x + 6, base - 8, __('forecast'), 'start'),
  ];
}

function axes(counts: number[], ticks: number[], frame: Frame): SVGElement[] {
  const [right, base] = [WIDTH - RIGHT, HEIGHT - BOTTOM];
  return [
    ...ticks.flatMap((value) => [line(`M${LEFT} ${frame.y(value)}H${right}`, 'dd-scalegrid'), text(LEFT - 7, frame.y(value) + 4, tickWord(value), 'end')]),
    line(`M${LEFT} ${base}H${right}`, 'dd-scaleaxis'),
    ...counts.flatMap((processes) => [line(`M${frame.x(processes)} ${base}v3`, 'dd-scaleaxis'), text(frame.x(processes), base + 16, String(processes), 'middle')]),
    text((LEFT + right) / 2, HEIGHT - 6, __('processes'), 'middle'),
  ];
}

function idealOf(ideal: number, counts: number[], frame: Frame): SVGElement[] {
  const [first = 1, last = 1] = [counts[0], counts.at(-1)];
  if (counts.length < 2) return [];
  const y = frame.y(ideal * last);
  return [line(`M${frame.x(first)} ${frame.y(ideal * first)}L${frame.x(last)} ${y}`, 'dd-scaleideal'), text(frame.x(last) + 7, y + 4, __('ideal'), 'start')];
}

const path = (points: [number, number][]): string => points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join('L');

function forecastOf(at: number, rows: Row[], frame: Frame): SVGElement[] {
  const after = rows.filter((row) => !row.measured);
  const last = rows.findLast((row) => row.measured);
  if (!after.length || !last) return [];
  const points = [{ ...last, error: 0 }, ...after];
  const edge = (sign: number): [number, number][] => points.map(({ processes, rate, error }) => [frame.x(processes), frame.y(rate + sign * error)]);
  return [
    line(`M${path(edge(1))}L${path(edge(-1).reverse())}Z`, `dd-scaleband dd-scale-${at % LOOKS}`),
    line(`M${path(edge(0))}`, `dd-scaleline dd-scale-${at % LOOKS} dd-dotted`),
    ...after.map((row) => shape(at, frame.x(row.processes), frame.y(row.rate), true)),
  ];
}

function measuredOf(at: number, many: number, rows: Row[], frame: Frame): SVGElement[] {
  const known = rows.filter((row) => row.measured);
  const beside = (at - (many - 1) / 2) * BESIDE;
  const place = (row: Row): [number, number] => [frame.x(row.processes) + beside, frame.y(row.rate)];
  const bars = known.flatMap((row) => {
    const [x, y] = place(row);
    const [top, bottom] = [frame.y(row.rate + row.error), frame.y(row.rate - row.error)];
    return [line(`M${x} ${top}V${bottom}M${x - 4} ${top}h8M${x - 4} ${bottom}h8`, `dd-scaleerror dd-scale-${at % LOOKS}`), shape(at, x, y, false)];
  });
  return known.length ? [line(`M${path(known.map(place))}`, `dd-scaleline dd-scale-${at % LOOKS} dd-dash-${at % LOOKS}`), ...bars] : [];
}

/** The efficiency at the last point that was measured of the first backend, and at each forecast. */
function labels({ rows }: Scaling, backends: string[], frame: Frame): SVGElement[] {
  const own = rows.filter(({ backend }) => backend === backends[0]);
  const known = own.filter((row) => row.measured);
  const after = own.filter((row) => !row.measured);
  const [last, end] = [known.at(-1), after.at(-1)];
  const found: SVGElement[] = [];
  if (known.length > 1 && last) found.push(text(frame.x(last.processes), frame.y(last.rate) + 27, share(last), 'middle', 'dd-scalelast'));
  for (const row of after.slice(0, -1)) found.push(text(frame.x(row.processes) + 2, frame.y(row.rate) + 20, share(row), 'start', 'dd-scaleshare'));
  if (end) {
    const [x, y] = [frame.x(end.processes) + 9, frame.y(end.rate)];
    found.push(text(x, y + 4, __('%1 %', Math.round(end.efficiency)), 'start', 'dd-scaleshare dd-b'), text(x, y + 18, __('± %1', Math.round(end.efficiency_error)), 'start'));
  }
  return found;
}

function without({ without: better }: Scaling, frame: Frame): SVGElement[] {
  if (!better) return [];
  const [x, y] = [frame.x(better.processes), frame.y(better.rate)];
  const words = better.text;
  // The text ends here, and begins beside the axis at least.
  const end = Math.max(x + 2, LEFT + 8 + 6 * words.length);
  return [element('circle', { cx: x, cy: y, r: 4, class: 'dd-scalewithout' }), text(end, y - 18, words, 'end', 'dd-scalebetter')];
}

// ---- shapes -------------------------------------------------------------------------------------

const mark = (at: number, hollow: boolean): SVGSVGElement => drawing(10, 10, [shape(at, 5, 5, hollow)]);

/** The mark of a backend: disc, square, diamond, triangle. */
function shape(at: number, x: number, y: number, hollow: boolean): SVGElement {
  const look = { class: `dd-scalemark dd-scale-${at % LOOKS}${hollow ? ' dd-hollow' : ''}` };
  if (at % LOOKS === 0) return element('circle', { cx: x, cy: y, r: hollow ? 3.5 : 4, ...look });
  if (at % LOOKS === 1) return element('rect', { x: x - 3.5, y: y - 3.5, width: 7, height: 7, ...look });
  return element('path', { d: at % LOOKS === 2 ? `M${x} ${y - 4.5}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z` : `M${x} ${y - 4.5}l4.5 8h-9Z`, ...look });
}
