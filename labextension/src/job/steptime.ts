/**
 * Where the time of a step goes: a bar for each rank, its own work solid, its waiting for other ranks hatched. In synchronous
 * training all steps are as long, so the rank that waits least is the slow one; it alone is orange.
 */
import { fill, h, setText, show, type Child } from '../ui/dom';
import { count, number } from '../ui/format';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import type { components } from '../api/schema';

export type JobTime = components['schemas']['JobTime'];
type RankTime = JobTime['ranks'][number];
type Straggler = NonNullable<JobTime['straggler']>;
type Part = (typeof WORK)[number] | 'waiting';

/** A rank's own work, in the order in which it is drawn. */
const WORK = ['data', 'compute', 'communication', 'rest'] as const;
/** Ranks that are drawn; of more, those that wait least. */
const MOST = 16;
/** A part of the bar that has room for its number, and for its name too. */
const [NUMBERED, NAMED] = [0.035, 0.16];

export class StepTimeView {
  readonly #summary = h('span', { class: 'dd-sub dd-s12 dd-ell dd-grow' });
  readonly #bars = h('div', { class: 'dd-steptimes' });
  readonly #box: HTMLDetailsElement;

  constructor(private readonly root: HTMLElement) {
    root.classList.add('dd-steptime');
    const head = h('summary', { class: 'dd-row' }, icon('right', 12, 'dd-turnable'), h('span', { class: 'dd-h3 dd-nw' }, __('Step time')), this.#summary);
    this.#box = h('details', {}, head, this.#bars);
    root.append(this.#box);
    show(root, false);
  }

  /** Show the bars, or only one line of words. */
  open(on: boolean): void {
    this.#box.open = on;
  }

  take(time: JobTime | null): void {
    show(this.root, time !== null && time.ranks.length > 0);
    if (!time?.ranks.length) return;
    setText(this.#summary, summary(time));
    fill(this.#bars, JSON.stringify(time), () => bars(time));
  }
}

const longest = (ranks: RankTime[]): number => Math.max(...ranks.map(({ seconds }) => seconds));
const own = ({ seconds, waiting }: RankTime): number => seconds - waiting;
const ms = (seconds: number): string => number(Number((seconds * 1000).toPrecision(seconds < 0.01 ? 2 : 3)));
const inMs = (seconds: number): string => __('%1 ms', ms(seconds));

function words(): Record<Part, string> {
  return { data: __('data'), compute: __('compute'), communication: __('communication'), rest: __('rest'), waiting: __('waiting for others') };
}

function summary({ ranks, samples_per_second: rate }: JobTime): string {
  const steps = Math.max(...ranks.map((rank) => rank.steps));
  const mean = _n('%2, one step', '%2, mean of %1 steps', steps, inMs(longest(ranks)));
  return [mean, ...(rate === null ? [] : [__('%1 samples/s', count(Math.round(rate)))])].join(' · ');
}

/** The part of a step in which a cause lies. */
const partOf = ({ cause }: Straggler): Part => cause as Part;

function bars(time: JobTime): Child[] {
  const { ranks, straggler } = time;
  const whole = longest(ranks);
  const shown = ranks.length > MOST ? [...ranks].sort((a, b) => a.waiting - b.waiting).slice(0, MOST) : ranks;
  const head = h('div', { class: 'dd-steprow dd-sub dd-s12' }, h('span', {}, __('Rank')), legend(), h('span', { class: 'dd-right' }, __('Own work')), h('span', { class: 'dd-right' }, __('Waiting')));
  const rows = shown.map((rank) => row(rank, whole, straggler?.rank === rank.rank ? straggler : null));
  const saved = straggler ? [without(straggler, whole)] : [];
  const rest = ranks.length - shown.length;
  const more = rest > 0 ? [h('div', { class: 'dd-sub dd-s12' }, _n('%2 more rank waits longer.', '%2 more ranks wait longer.', rest, count(rest)))] : [];
  return [head, h('div', { class: 'dd-stepbox' }, ...rows, ...saved), axis(whole), ...more];
}

function legend(): HTMLElement {
  const names = words();
  const key = (part: Part): HTMLElement => h('span', { class: 'dd-row dd-nw' }, h('i', { class: `dd-rolekey dd-role-${part}` }), names[part]);
  return h('div', { class: 'dd-rolekeys' }, h('span', { class: 'dd-nw' }, __('own work:')), ...WORK.map(key), h('i', { class: 'dd-rolebreak' }), key('waiting'));
}

function row(rank: RankTime, whole: number, straggler: Straggler | null): HTMLElement {
  const names = words();
  const cause = straggler && partOf(straggler);
  const parts = [...WORK, 'waiting' as const].map((part) => segment(part, rank[part], whole, part === cause));
  const label = [...WORK, 'waiting' as const].map((part) => `${names[part]} ${inMs(rank[part])}`).join(', ');
  const name = h('span', { class: 'dd-row dd-ell' }, h('i', { class: `dd-swatch dd-rank-${rank.rank % 4}${rank.rank % 8 > 3 ? ' dd-rank-dashed' : ''}` }), h('b', {}, String(rank.rank)), h('span', { class: 'dd-sub dd-ell', title: rank.host }, rank.host));
  const numbers = h('b', { class: straggler ? 'dd-right dd-num dd-nw dd-ink-warn' : 'dd-right dd-num dd-nw' }, inMs(own(rank)));
  return h(
    'div',
    { class: straggler ? 'dd-steprow dd-oddrow' : 'dd-steprow' },
    name,
    h('div', { class: 'dd-stepbar', role: 'img', 'aria-label': label, title: label }, ...parts),
    numbers,
    h('span', { class: 'dd-right dd-num dd-nw dd-sub' }, inMs(rank.waiting)),
  );
}

/** Return one part of a bar, with its value if it fits; the part that makes the rank slow also has its name. */
function segment(part: Part, seconds: number, whole: number, slow: boolean): HTMLElement {
  const share = seconds / whole;
  const named = share > NAMED && (slow || part === 'compute' || part === 'waiting');
  const word = part === 'waiting' ? __('waits') : words()[part];
  const whose = slow && part === 'data' ? __('waits for its data %1', inMs(seconds)) : `${word} ${ms(seconds)}`;
  const text = share < NUMBERED ? '' : named ? whose : ms(seconds);
  const element = h('i', { class: `dd-role dd-role-${part}${slow ? ' dd-odd' : ''}` }, h('span', {}, text));
  element.style.width = `${100 * share}%`;
  return element;
}

/** A dashed line where the step would end without the delay. */
function without({ seconds, rank, cause }: Straggler, whole: number): HTMLElement {
  const [left, who] = [inMs(whole - seconds), String(rank)];
  const texts: Record<string, string> = {
    data: __('%1 per step if rank %2 had its data in time', left, who),
    compute: __('%1 per step if rank %2 computed as fast as the others', left, who),
    rest: __('%1 per step if rank %2 did no more than the others between steps', left, who),
  };
  const at = Math.max(0, 1 - seconds / whole);
  const line = h('div', { class: at < 0.5 ? 'dd-stepwithout dd-stepearly' : 'dd-stepwithout' }, h('span', { class: 'dd-nw' }, texts[cause] ?? left));
  line.style.setProperty('--at', String(at));
  return h('div', { class: 'dd-steprow dd-stepover', 'aria-hidden': 'true' }, h('span'), line, h('span'), h('span'));
}

function axis(whole: number): HTMLElement {
  const ends = h('div', { class: 'dd-row' }, h('span', { class: 'dd-grow' }, '0'), h('span', {}, inMs(whole / 2)), h('span', { class: 'dd-grow dd-right' }, inMs(whole)));
  return h('div', { class: 'dd-steprow dd-sub dd-s12 dd-num', 'aria-hidden': 'true' }, h('span'), ends, h('span'), h('span'));
}
