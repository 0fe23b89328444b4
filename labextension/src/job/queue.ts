/** A job that waits for its turn: its place, who holds what, and why it waits, first what is not free. */
import type { ClusterRow } from '../api/schema';
import type { Card } from './card';
import type { Watch } from './jobview';
import { fill, h, onClick, setText, show } from '../ui/dom';
import { bytes, count, shortId } from '../ui/format';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';

type Queue = NonNullable<Card['queue']>;
type Holding = Queue['holding'][number];

/** A cluster with idle nodes: their number and that of their GPUs. */
export interface Offer {
  name: string;
  nodes: number;
  gpus: number;
}

/** What a user can do about a job that waits. */
export interface QueueActions {
  raise(): void;
  /** Watch where it could start; called at once and after each change. */
  elsewhere(changed: (offers: Offer[]) => void): Watch;
  move(target: string): void;
}

/** Lines about running jobs at most. */
const MOST_LINES = 12;

export class QueuePart {
  readonly root = h('div', { class: 'dd-queue', hidden: true });
  readonly #place = h('div', { class: 'dd-queue-place', role: 'status' });
  readonly #why = h('div', { class: 'dd-queue-why' });
  // No dl, dt and dd: JupyterLab styles them in the outputs of cells.
  readonly #lines = h('div', { class: 'dd-queue-rows dd-queue-holders', role: 'list' });
  readonly #holders = h('section', { hidden: true }, h('div', { class: 'dd-h3' }, __('Resources in use')), this.#lines);
  readonly #rows = h('div', { class: 'dd-queue-rows', role: 'list' });
  readonly #reasons = h('section', {}, h('div', { class: 'dd-h3' }, __('Why it waits')), this.#rows);
  readonly #raise = h('button', { type: 'button', class: 'dd-btn' }, __('Raise priority'));
  #queue: Queue | null = null;
  readonly #move = h('button', { type: 'button', class: 'dd-btn', hidden: true });
  readonly #offer = h('div', { class: 'dd-row dd-queue-offer', hidden: true });
  #target = '';
  #watch: Watch | null = null;

  constructor(private readonly actions: QueueActions) {
    const { raise, move } = actions;
    const foot = h('div', { class: 'dd-row dd-queue-actions' }, onClick(this.#raise, raise), onClick(this.#move, () => move(this.#move.value)));
    this.root.append(this.#place, this.#why, this.#holders, this.#reasons, foot, this.#offer);
  }

  /** Show a newer card; whether the job waits. */
  update(card: Card): boolean {
    const queue = card.state === 'queued' ? ((card.queue as Card['queue'] | undefined) ?? null) : null;
    show(this.root, queue !== null);
    this.#queue = queue;
    if (queue) this.#watch ??= this.actions.elsewhere((found) => this.#offered(found));
    else this.dispose();
    this.#target = card.compute_target;
    if (queue) {
      setText(this.#place, queue.position ? __('Position %1 of %2', queue.position, queue.of) : '');
      setText(this.#why, sentence(queue));
      fill(this.#rows, JSON.stringify([queue.needs, queue.free, queue.lacks, queue.names, queue.priority]), () => reasons(queue));
      show(this.#raise, !queue.is_fixed);
      show(this.#reasons, Object.keys(queue.needs).length > 0);
      const lines = holders(queue);
      show(this.#holders, lines.length > 0);
      fill(this.#lines, JSON.stringify(lines), () => lines.map(({ label, name }) => row([label], [name])));
    }
    return queue !== null;
  }

  /** Stop watching where the job could start. */
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
    fill(this.#offer, has, () => [icon('info', 14, 'dd-ink-brand'), h('span', {}, h('b', {}, __('%1:', has)), ' ', __('the job would start there now and leave this queue.'))]);
  }
}

/** Return the named clusters with idle nodes. */
export function offers(clusters: readonly ClusterRow[]): Offer[] {
  return clusters.filter(({ named, problem, kind }) => named && !problem && kind !== 'local').map(({ name, nodes }) => {
    const idle = nodes.filter(({ state }) => state === 'idle');
    return { name, nodes: idle.length, gpus: idle.reduce((all, { gpus }) => all + gpus, 0) };
  });
}

/** Return what a job waits for as a sentence. */
function sentence({ why }: Queue): string {
  return why ? `${why.charAt(0).toUpperCase()}${why.slice(1)}.` : '';
}

interface Line {
  label: string;
  name: string;
}

/** Return a line for each GPU that is held, and one for each job that holds something else. */
function holders(queue: Queue): Line[] {
  const called = (job: Holding): string => (job.user ? __('%1 of %2', job.name, job.user) : job.name);
  const gpus = queue.holding.flatMap((job) => job.gpus.map((gpu) => ({ label: __('GPU %1', gpu), name: called(job) })));
  const rest = queue.holding.filter((job) => !job.gpus.length && (job.cores || job.memory));
  gpus.sort((left, right) => left.label.localeCompare(right.label, undefined, { numeric: true }));
  return [...gpus, ...rest.map((job) => ({ label: held(job), name: `${called(job)} ${shortId(job.job)}` }))].slice(0, MOST_LINES);
}

const held = (job: Holding): string => [job.cores && amount('cores', job.cores), job.memory && amount('memory', job.memory)].filter(Boolean).join(', ');

const WORDS: Record<string, () => string> = { gpus: () => __('GPUs'), cores: () => __('Cores'), memory: () => __('Memory') };

/** Return a row for each thing that the job needs, what is missing first, and one for its order. */
function reasons(queue: Queue): HTMLElement[] {
  const names = Object.keys(queue.needs).sort((left, right) => Number(queue.lacks.includes(right)) - Number(queue.lacks.includes(left)));
  const rows = names.map((name) => {
    const [needs, free] = [queue.needs[name] ?? 0, queue.free[name] ?? 0];
    return check(WORDS[name]?.() ?? name, __('needs %1, %2 free', amount(name, needs), name === 'cores' ? count(free) : amount(name, free)), !queue.lacks.includes(name));
  });
  const before = queue.lacks.includes('order') ? __('after %1', queue.names.join(', ')) : __('first in line');
  const order = queue.position > 1 && !queue.lacks.includes('order') ? _n('%1 job ahead', '%1 jobs ahead', queue.position - 1) : before;
  return [...rows, check(__('Order'), order, !queue.lacks.includes('order'))];
}

function check(word: string, text: string, met: boolean): HTMLElement {
  const mark = met ? icon('check', 14, 'dd-ink-ok') : icon('queued', 14, 'dd-ink-warn');
  return row([mark, word], met ? [text] : [h('b', {}, text)]);
}

function row(label: (Node | string)[], value: (Node | string)[]): HTMLElement {
  return h('div', { class: 'dd-queue-row', role: 'listitem' }, h('span', { class: 'dd-queue-label' }, ...label), h('span', { class: 'dd-queue-value' }, ...value));
}

function amount(name: string, value: number): string {
  if (name === 'memory') return bytes(value);
  return name === 'cores' ? _n('%1 core', '%1 cores', value) : String(value);
}
