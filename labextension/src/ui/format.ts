/**
 * How times, counts and numbers are written: the same rules as `core/humanize.py`, and a test holds the two together.
 * The words between the numbers are those of the page's language.
 */
import { __, _n } from './trans';

export type State =
  | 'queued' | 'preparing' | 'starting' | 'running' | 'canceling' | 'completed' | 'failed' | 'canceled' | 'lost';

/** A state as it is shown: a job that has started and makes no progress is stalled. */
export type ShownState = State | 'stalled';

export const shownState = (state: State, stalled: boolean): ShownState =>
  stalled && (state === 'running' || state === 'starting') ? 'stalled' : state;

export const ENDED: ReadonlySet<string> = new Set(['completed', 'failed', 'canceled', 'lost']);
export const PHASES = ['capture', 'stage', 'start', 'rendezvous', 'train', 'collect', 'clean'] as const;
type Unit = (amount: number | string) => string;
const DAYS: Unit = (amount) => __('%1 d', amount);
const HOURS: Unit = (amount) => __('%1 h', amount);
const MINUTES: Unit = (amount) => __('%1 min', amount);
const SECONDS: Unit = (amount) => __('%1 s', amount);
const SPANS: [number, Unit, number, Unit][] = [
  [86400, DAYS, 3600, HOURS],
  [3600, HOURS, 60, MINUTES],
  [60, MINUTES, 1, SECONDS],
];

/** Return a word with a capital. */
export const capital = (word: string): string => word.charAt(0).toUpperCase() + word.slice(1);

/** Return the word of a state as a label. */
export function stateWord(state: ShownState): string {
  const words: Record<ShownState, string> = {
    queued: __('Queued'),
    preparing: __('Preparing'),
    starting: __('Starting'),
    running: __('Running'),
    stalled: __('Stalled'),
    canceling: __('Canceling'),
    completed: __('Completed'),
    failed: __('Failed'),
    canceled: __('Canceled'),
    lost: __('Lost'),
  };
  return words[state];
}

/** Return the word of a phase of the set-up. */
export function phaseWord(phase: (typeof PHASES)[number]): string {
  const words: Record<(typeof PHASES)[number], string> = {
    capture: __('Capture'),
    stage: __('Stage'),
    start: __('Start'),
    rendezvous: __('Rendezvous'),
    train: __('Train'),
    collect: __('Collect'),
    clean: __('Clean up'),
  };
  return words[phase];
}

/** Return the word of a rank's activity as part of a line. */
export function rankWord(status: string): string {
  const words: Record<string, string> = {
    waiting: __('waiting'), started: __('started'), ready: __('running'), compiling: __('compiling'), ended: __('ended'), failed: __('failed'),
  };
  return words[status] ?? status;
}

/** Return the word of what a job counts; one that the user made up stays as it is. */
export function unitWord(unit: string): string {
  const words: Record<string, string> = { step: __('step'), epoch: __('epoch'), batch: __('batch') };
  return words[unit] ?? unit;
}

/** What the times of a job are taken from (epoch seconds); `waited` are the seconds in a queue before `queued_since`. */
export interface Times {
  created: number;
  waited: number;
  queued_since: number | null;
}

/** Seconds in a queue that count as none: the way through an empty one. */
const SHORT_WAIT = 1;

/** How many seconds a job ran and waited in a queue until `now`. */
export function spans({ created, waited, queued_since: since }: Times, now: number): { ran: number; waited: number } {
  const all = waited + (since === null ? 0 : Math.max(0, now - since));
  const shown = all >= SHORT_WAIT ? all : 0;
  return { ran: Math.max(0, now - created - shown), waited: shown };
}

export function ranAndWaited(ran: number, waited: number): string {
  return __('ran %1, waited %2', duration(ran), duration(waited));
}

/** Return a time span in whole seconds, two units at most: "52 s", "1 min 21 s". */
export function duration(seconds: number): string {
  const whole = Math.round(Math.max(0, seconds));
  for (const [length, unit, part, partUnit] of SPANS) {
    if (whole < length) continue;
    const rest = Math.floor((whole % length) / part);
    return unit(Math.floor(whole / length)) + (rest ? ` ${partUnit(rest)}` : '');
  }
  return SECONDS(whole);
}

/** Return a short span with tenths, as phases show it: "3.5 s". */
export function secondsTaken(seconds: number): string {
  return seconds < 9.95 ? SECONDS(Math.max(0, seconds).toFixed(1)) : duration(seconds);
}

/** Return how long something is past, in one unit: "3 s ago". */
export function ago(seconds: number): string {
  for (const [length, unit] of [...SPANS, [1, SECONDS] as const]) {
    if (seconds >= length) return __('%1 ago', unit(Math.floor(seconds / length)));
  }
  return __('just now');
}

/** Return a count or a step with thousands marked: "1,200". */
export function count(value: number): string {
  if (!Number.isFinite(value)) return number(value);
  return Number.isInteger(value) ? thousands(value.toFixed(0)) : thousands(String(Number(value.toPrecision(6))));
}

/** Return a value in about three digits: "0.114", "47.2", "2,065", "3.1e-5". */
export function number(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf';
  const size = Math.abs(value);
  if (size >= 1e9 || (size > 0 && size < 0.001)) return scientific(value);
  if (Number.isInteger(value) || size >= 999.5) return thousands((value + 0).toFixed(0));
  if (size < 0.00995) return String(Number(value.toPrecision(3)));
  return value.toFixed(size < 0.9995 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

/** Return the labels of an axis whose ticks are equally far apart: all with the decimals that the finest needs. */
export function tickLabels(values: readonly number[]): string[] {
  if (values.some((value) => value !== 0 && (Math.abs(value) < 1e-5 || Math.abs(value) >= 1e9))) return values.map(number);
  const decimals = Math.max(0, ...values.map((value) => String(Number(value.toPrecision(6))).split('.')[1]?.length ?? 0));
  return values.map((value) => thousands((value + 0).toFixed(decimals)));
}

function scientific(value: number): string {
  const [mantissa = '', exponent = '0'] = value.toExponential(2).split('e');
  return `${mantissa.replace(/\.?0+$/, '')}e${Number(exponent)}`;
}

function thousands(digits: string): string {
  const [whole = '', fraction] = digits.split('.');
  const marked = whole.replace(/\B(?=(\d{3})+$)/g, ',');
  return fraction === undefined ? marked : `${marked}.${fraction}`;
}

/** Return an amount of money with two decimals: "7.35 USD", "1,204.50 EUR"; what is not nothing is a cent. */
export const money = (amount: number, currency: string): string =>
  `${thousands((amount > 0 ? Math.max(amount, 0.01) : 0).toFixed(2))} ${currency}`;

/** Return a size as people read it: "927 kB", "1.2 MB". */
export function bytes(size: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let [value, unit] = [size, 0];
  while (value >= 999.5 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${unit && value < 9.95 ? value.toFixed(1) : count(Math.round(value))} ${units[unit] ?? ''}`;
}

/** Return a share in whole percent, 100 only when all is done: "62 %". */
export function percent(done: number, total: number): string {
  const share = total ? Math.max(0, done / total) : 0;
  return `${share >= 1 ? 100 : Math.min(99, Math.round(100 * share))} %`;
}

/** Return the local time of day: "02:49:17", with tenths "12:04:31.2". */
export function clock(moment: number, tenths = false): string {
  const time = new Date(moment * 1000);
  const two = (part: number): string => String(part).padStart(2, '0');
  const text = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  return tenths ? `${text}.${Math.floor(time.getMilliseconds() / 100)}` : text;
}

/** Return the day of an epoch time as "20 Nov", "" when it is today. */
export function pastDay(moment: number, now: number): string {
  const [then, today] = [new Date(moment * 1000), new Date(now * 1000)];
  if (then.toDateString() === today.toDateString()) return '';
  // Translators: the language's code, for dates.
  const language = __('en');
  if (language !== 'en') return then.toLocaleDateString(language, { month: 'short', day: 'numeric' });
  return `${then.getDate()} ${then.toLocaleString('en', { month: 'short' })}`;
}

/** Return how many ranks: "1 rank", "1,204 ranks". */
export const rankCount = (amount: number): string => _n('%2 rank', '%2 ranks', amount, count(amount));

/** Return how many lines: "1 line", "1,204 lines". */
export const lineCount = (amount: number): string => _n('%2 line', '%2 lines', amount, count(amount));

/** Return how many processes: "1 process", "8 processes". */
export const processCount = (amount: number): string => _n('%2 process', '%2 processes', amount, count(amount));

/** Return words as a sentence lists them: "0, 1 and 3". */
export function listing(words: (string | number)[]): string {
  return words.length < 2 ? words.join('') : __('%1 and %2', words.slice(0, -1).join(', '), words[words.length - 1] ?? '');
}

/** Return ranks by name: "rank 3", "ranks 0 and 1"; beyond six only how many. */
export function ranks(numbers: number[]): string {
  if (numbers.length > 6) return rankCount(numbers.length);
  return _n('rank %2', 'ranks %2', numbers.length, listing(numbers));
}

/** Return all ranks by name, neighbours as a span: "rank 3", "ranks 0-2, 5". */
export function rankSpans(numbers: number[]): string {
  const spans: [number, number][] = [];
  for (const rank of numbers) {
    const last = spans.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else spans.push([rank, rank]);
  }
  const words = spans.flatMap(([from, to]) => (to > from + 1 ? [`${from}-${to}`] : to > from ? [String(from), String(to)] : [String(from)]));
  return _n('rank %2', 'ranks %2', numbers.length, words.join(', '));
}

/** Return the sum that a job's size is: "2 × 2 = 4 processes", "1 process". */
export function processes(nodes: number, perNode: number): string {
  const total = processCount(nodes * perNode);
  return nodes * perNode === 1 ? total : __('%1 × %2 = %3', nodes, perNode, total);
}

/** Return the last part of a job's id: "k3f9". */
export const shortId = (id: string): string => id.slice(id.lastIndexOf('-') + 1);

/** Return a sentence of Python without its backticks, for where there is only plain text: toasts, tooltips, options. */
export const unquoted = (text: string): string => text.replace(/`([^`\n]*)`/g, '$1');

/** Experiment trackers by the names that the option `track` accepts. */
export const TRACKERS = [['mlflow', 'MLflow'], ['tensorboard', 'TensorBoard'], ['wandb', 'Weights & Biases']];
