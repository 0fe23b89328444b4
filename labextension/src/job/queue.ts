/**
 * A job that waits for its turn: its place, when it can start, who holds what until when, and why it waits, what is not
 * there first.
 */
import type { Cluster } from '../api/schema';
import type { Card, Clock } from './card';
import type { Watch } from './jobview';
import { fill, h, onClick, setText, show } from '../ui/dom';
import { bytes, clock as time, duration, shortId } from '../ui/format';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';

type Queue = NonNullable<Card['queue']>;
type Holding = Queue['holding'][number];

/** A cluster on which machines stand idle: their number and that of their GPUs. */
export interface Offer {
  name: string;
  nodes: number;
  gpus: number;
}

/** What a reader can do about a job that waits; left out is what cannot be asked here. */
export interface QueueActions {
  raise?(): void;
  /** Be told where it could start, at once and whenever that changes. */
  elsewhere?(told: (found: Offer[]) => void): Watch;
  move?(target: string): void;
}

/** Seconds that the figure shows at least, and lines of it at most. */
const [SHORTEST, MOST_LINES] = [60, 12];
/** Seconds between two marks on the axis of time. */
const STEPS = [15, 30, 60, 120, 180, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400];
/** Seconds before its start at which a job may begin any moment. */
const SOON = 10;

export class QueuePart {
  readonly root = h('div', { class: 'dd-queue', hidden: true });
  readonly #place = h('div', { class: 'dd-queue-place', role: 'status' });
  readonly #start = h('span', { class: 'dd-sub' });
  readonly #why = h('div', { class: 'dd-queue-why' });
  readonly #figure = h('div', { class: 'dd-queue-figure' });
  readonly #holders = h('section', { hidden: true }, h('div', { class: 'dd-h3' }, __('Who holds what')), this.#figure);
  readonly #rows = h('dl', { class: 'dd-queue-rows' });
  readonly #reasons = h('section', {}, h('div', { class: 'dd-h3' }, __('Why it waits')), this.#rows);
  readonly #raise = h('button', { type: 'button', class: 'dd-btn' }, __('Raise priority'));
  #queue: Queue | null = null;
  readonly #move = h('button', { type: 'button', class: 'dd-btn', hidden: true });
  readonly #offer = h('div', { class: 'dd-row dd-queue-offer', hidden: true });
  #name = '';
  #target = '';
  #watch: Watch | null = null;

  constructor(private readonly clock: Clock, private readonly actions: QueueActions) {
    const { raise, move } = actions;
    const auto = h('span', { class: 'dd-btn dd-on dd-queue-auto' }, icon('check', 14), __('Start when free'));
    const foot = h('div', { class: 'dd-row dd-queue-actions' }, auto, ...(raise ? [onClick(this.#raise, raise)] : []), ...(move ? [onClick(this.#move, () => move(this.#move.value))] : []));
    this.root.append(h('div', { class: 'dd-row dd-queue-head' }, h('div', { class: 'dd-grow' }, this.#place), this.#start), this.#why, this.#holders, this.#reasons, foot, this.#offer);
  }

  /** Show a newer card; whether the job waits. */
  update(card: Card): boolean {
    const queue = card.state === 'queued' ? ((card.queue as Card['queue'] | undefined) ?? null) : null;
    show(this.root, queue !== null);
    this.#queue = queue;
    if (queue) this.#watch ??= this.actions.elsewhere?.((found) => this.#offered(found)) ?? null;
    else this.dispose();
    this.#name = card.name;
    this.#target = card.compute_target;
    if (queue) {
      setText(this.#place, __('Place %1 of %2', queue.place, queue.of));
      setText(this.#why, sentence(queue));
      fill(this.#rows, JSON.stringify([queue.needs, queue.free, queue.lacks, queue.names, queue.priority]), () => reasons(queue));
      show(this.#raise, !queue.is_fixed);
      show(this.#reasons, Object.keys(queue.needs).length > 0);
      this.tick();
    }
    return queue !== null;
  }

  /** Redraw what depends on the time. */
  tick(): void {
    const queue = this.#queue;
    if (!queue) return;
    const now = this.clock.now();
    setText(this.#start, queue.start === null ? '' : startWords(queue.start - now));
    show(this.#holders, queue.holding.length > 0);
    const bars = lines(queue).slice(0, MOST_LINES);
    const known = bars.flatMap(({ end }) => (end === null ? [] : [end - now]));
    const span = Math.max(SHORTEST, ...known.map((left) => left * 1.25), queue.start === null ? 0 : (queue.start - now) * 1.5);
    fill(this.#figure, JSON.stringify([bars, Math.round(span), queue.start, Math.round(now / 5)]), () => [
      axis(span),
      ...bars.map((bar) => line(bar, span, now)),
      ...(queue.start === null ? [] : [forecast(this.#name, queue, span, now)]),
    ]);
  }

  /** Look no more where the job could start. */
  dispose(): void {
    this.#watch?.dispose();
    this.#watch = null;
  }

  #offered(found: readonly Offer[]): void {
    const gpus = this.#queue?.needs['gpus'] ?? 0;
    const best = found.find((one) => one.name !== this.#target && one.nodes > 0 && one.gpus >= gpus);
    show(this.#move, best !== undefined);
    show(this.#offer, best !== undefined);
    if (!best) return;
    const { name, nodes } = best;
    this.#move.value = name;
    setText(this.#move, __('Run elsewhere: %1', name));
    const has = gpus ? _n('%2 has %1 GPU free', '%2 has %1 GPUs free', best.gpus, name) : _n('%2 has %1 idle node', '%2 has %1 idle nodes', nodes, name);
    fill(this.#offer, has, () => [icon('info', 14, 'dd-ink-brand'), h('span', {}, h('b', {}, __('%1:', has)), ' ', __('it would start there now, and give up its place here.'))]);
  }
}

/** Return the clusters with a name on which machines stand idle. */
export function offers(clusters: readonly Cluster[]): Offer[] {
  return clusters.filter(({ named, problem, kind }) => named && !problem && kind !== 'local').map(({ name, nodes }) => {
    const idle = nodes.filter(({ state }) => state === 'idle');
    return { name, nodes: idle.length, gpus: idle.reduce((all, { gpus }) => all + gpus, 0) };
  });
}

/** Return when a job can start, from now: "can start in about 6 min". */
export function startWords(left: number): string {
  if (left < SOON) return __('can start any moment');
  return __('can start in about %1', duration(left < 60 ? left : Math.round(left / 60) * 60));
}

/** Return what a job waits for as a sentence. */
function sentence({ why }: Queue): string {
  return why ? `${why.charAt(0).toUpperCase()}${why.slice(1)}.` : '';
}

interface Bar {
  label: string;
  name: string;
  end: number | null;
}

/** Return a line for each GPU that is held, and one for each job that holds something else. */
function lines(queue: Queue): Bar[] {
  const called = (one: Holding): string => (one.user ? __('%1 of %2', one.name, one.user) : one.name);
  const gpus = queue.holding.flatMap((one) => one.gpus.map((gpu) => ({ label: __('GPU %1', gpu), name: called(one), end: one.ends })));
  const rest = queue.holding.filter((one) => !one.gpus.length);
  gpus.sort((left, right) => left.label.localeCompare(right.label, undefined, { numeric: true }));
  return [...gpus, ...rest.map((one) => ({ label: one.cores ? amount('cores', one.cores) : amount('memory', one.memory), name: `${called(one)} ${shortId(one.job)}`, end: one.ends }))];
}

function axis(span: number): HTMLElement {
  const step = STEPS.find((one) => span / one < 6) ?? 86_400 * Math.ceil(span / 86_400 / 5);
  // The last mark has room for its words.
  const marks = Array.from({ length: Math.ceil((0.95 * span) / step) }, (_, at) => h('span', { style: `left: ${((at * step) / span) * 100}%` }, at ? duration(at * step) : __('now')));
  return h('div', { class: 'dd-queue-axis', 'aria-hidden': 'true' }, ...marks);
}

function line({ label, name, end }: Bar, span: number, now: number): HTMLElement {
  const width = end === null ? 100 : Math.max(2, Math.min(100, ((end - now) / span) * 100));
  const until = end === null ? __('its end is not known') : __('until about %1', time(end).slice(0, 5));
  const bar = h('span', { class: 'dd-queue-bar', style: `width: ${width}%`, title: `${name}, ${until}`, 'data-open': end === null ? 'true' : 'false' }, name);
  return h('div', { class: 'dd-queue-line' }, h('span', { class: 'dd-queue-label' }, label), h('span', { class: 'dd-queue-track', role: 'img', 'aria-label': `${label}: ${name}, ${until}` }, bar));
}

function forecast(name: string, queue: Queue, span: number, now: number): HTMLElement {
  const from = Math.min(98, Math.max(0, (((queue.start ?? now) - now) / span) * 100));
  const bar = h('span', { class: 'dd-queue-bar', 'data-forecast': 'true', style: `left: ${from}%; width: ${100 - from}%` }, name);
  return h('div', { class: 'dd-queue-line' }, h('span', { class: 'dd-queue-label' }, __('this job')), h('span', { class: 'dd-queue-track' }, bar));
}

const WORDS: Record<string, () => string> = { gpus: () => __('GPUs'), cores: () => __('Cores'), memory: () => __('Memory') };

/** Return a row for each thing that the job needs, what is missing first, and one for its order. */
function reasons(queue: Queue): HTMLElement[] {
  const names = Object.keys(queue.needs).sort((left, right) => Number(queue.lacks.includes(right)) - Number(queue.lacks.includes(left)));
  const rows = names.map((name) => {
    const [needs, free] = [queue.needs[name] ?? 0, queue.free[name] ?? 0];
    return row(WORDS[name]?.() ?? name, __('needs %1, free %2', amount(name, needs), amount(name, free)), !queue.lacks.includes(name));
  });
  const before = queue.lacks.includes('order') ? __('after %1', queue.names.join(', ')) : __('no job before it');
  const order = queue.place > 1 && !queue.lacks.includes('order') ? _n('%1 job before it', '%1 jobs before it', queue.place - 1) : before;
  return [...rows, row(__('Order'), order, !queue.lacks.includes('order'))].flat();
}

function row(word: string, text: string, met: boolean): HTMLElement[] {
  const mark = met ? icon('check', 14, 'dd-ink-ok') : icon('queued', 14, 'dd-ink-warn');
  return [h('dt', {}, mark, word), h('dd', { 'data-met': String(met) }, text)];
}

function amount(name: string, value: number): string {
  if (name === 'memory') return bytes(value);
  return name === 'cores' ? _n('%1 core', '%1 cores', value) : String(value);
}
