/**
 * Stacks of all ranks side by side: one column per group of ranks with the same stack, the smallest group first,
 * because when training hangs the rank that differs is the likely cause.
 *
 * It opens on a click. The job's card lists the stacks, which are read from a `StacksSource`.
 */
import { ApiError } from '../api/api';
import type { Card, Stacks, StackFrame, StackGroup, StackThread } from './card';
import { collectivesTable } from './collectives';
import { assign, fill, h, onClick, quoted, show, type Child } from '../ui/dom';
import { packageOf, type Reach } from './failure';
import { button } from './header';
import { showMessage } from '../ui/refusal';
import { __, _n } from '../ui/trans';
import { folded } from './text';
import { python } from './pycolor';
import { clock, count, duration, listing, rankSpans } from '../ui/format';

/** Requests and reads stack traces. */
export interface StacksSource {
  ask(): Promise<unknown>;
  read(number: number): Promise<Stacks>;
}

/** Milliseconds that ranks have to respond; the job's supervisor times out earlier. */
const TIMEOUT = 20_000;
/** Largest group that shows one chip per rank. */
const CHIPS = 8;

export class StacksView {
  #card: Card | null = null;
  #open = false;
  /** Open the view when the first card arrives. */
  #openWhenKnown = false;
  #shown: Stacks | null = null;
  #requested = 0;
  #problem: unknown = '';
  #pending: { after: number; timer: ReturnType<typeof setTimeout> } | null = null;
  readonly #status = h('span', { class: 'dd-sub dd-s12 dd-ell', role: 'status' });
  readonly #earlier = h('select', { class: 'dd-select dd-s12', 'aria-label': __('Captured stack traces') });
  readonly #capture = button('rerun', __('Capture again'), 'dd-small dd-shrink');
  readonly #close = button('close', __('Close the stacks'), 'dd-quiet dd-icon');
  readonly #body = h('div', { class: 'dd-stackbody' });

  constructor(
    readonly root: HTMLElement,
    private readonly source: StacksSource,
    private readonly reach: Reach,
    private readonly changed: (open: boolean) => void,
  ) {
    root.classList.add('dd-stacks', 'dd-gone');
    assign(root, { role: 'region', 'aria-label': __('Stacks of all ranks') });
    const title = h('h3', { class: 'dd-h3 dd-nw' }, __('Stacks'));
    root.append(h('div', { class: 'dd-part' }, title, this.#status, h('span', { class: 'dd-grow' }), this.#earlier, this.#capture, this.#close), this.#body);
    onClick(this.#capture, () => {
      if (!this.#pending) this.#ask();
    });
    onClick(this.#close, () => this.close());
    this.#earlier.addEventListener('change', () => void this.#read(Number(this.#earlier.value)));
    root.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') this.close();
    });
  }

  get open(): boolean {
    return this.#open;
  }

  /** Show a newer card and read requested stacks once they are available. */
  update(card: Card): void {
    this.#card = card;
    if (this.#openWhenKnown) this.show();
    const newest = card.stacks.at(-1)?.number ?? 0;
    if (this.#open && newest > (this.#pending?.after ?? this.#requested)) void this.#read(newest);
    if (this.#pending && !card.can_ask_stacks) this.#settle(__('The ranks ended before they responded.'));
    this.#draw();
  }

  toggle(): void {
    if (this.#open) this.close();
    else this.show();
  }

  close(): void {
    this.#open = false;
    this.#draw();
    this.changed(false);
  }

  dispose(): void {
    clearTimeout(this.#pending?.timer);
  }

  /** Show the stacks captured at the start of the stall, or the last ones of an ended job; otherwise request new ones. */
  show(): void {
    const card = this.#card;
    this.#openWhenKnown = card === null;
    if (!card || this.#open) return;
    this.#open = true;
    const newest = card.stacks.at(-1);
    const holds = newest && (!card.can_ask_stacks || (card.stall !== null && newest.t >= card.stall.since));
    if (newest && holds) void this.#read(newest.number);
    else this.#ask();
    this.changed(true);
  }

  #ask(): void {
    clearTimeout(this.#pending?.timer);
    this.#problem = '';
    const timer = setTimeout(() => this.#settle(__('The ranks have not responded.')), TIMEOUT);
    this.#pending = { after: this.#card?.stacks.at(-1)?.number ?? 0, timer };
    this.#draw();
    this.source.ask().catch((error: unknown) => this.#settle(error));
  }

  #settle(problem: unknown): void {
    clearTimeout(this.#pending?.timer);
    this.#pending = null;
    this.#problem = problem;
    this.#draw();
  }

  async #read(number: number): Promise<void> {
    if (number === this.#requested && this.#shown?.number === number) return this.#settle('');
    this.#requested = number;
    try {
      const stacks = await this.source.read(number);
      if (this.#requested !== number) return;
      this.#shown = stacks;
      this.#settle('');
    } catch (error) {
      if (this.#requested !== number) return;
      // The next card shows that the server is there again, and reads them once more.
      if (error instanceof ApiError && error.status === 0) this.#requested = this.#shown?.number ?? 0;
      this.#settle(error);
    }
  }

  #draw(): void {
    const card = this.#card;
    this.root.classList.toggle('dd-gone', !this.#open);
    if (!this.#open || !card) return;
    const shown = this.#shown;
    const bad = !this.#pending && this.#problem !== '';
    showMessage(this.#status, this.#pending ? __('Capturing stack traces of all ranks') : this.#problem || (shown ? captureSummary(shown) : ''));
    this.#status.classList.toggle('dd-ink-err', bad);
    this.#status.classList.toggle('dd-ell', !bad);
    // `disabled` would drop the focus.
    assign(this.#capture, { 'aria-disabled': this.#pending !== null && 'true' });
    show(this.#capture, card.can_ask_stacks);
    this.#drawEarlier(card);
    fill(this.#body, JSON.stringify([shown?.number, shown?.t]), () => (shown ? this.#columns(shown) : []));
  }

  #drawEarlier({ stacks }: Card): void {
    show(this.#earlier, stacks.length > 1);
    fill(this.#earlier, JSON.stringify(stacks), () => [...stacks].reverse().map(({ number, t, why }) => h('option', { value: number }, `${clock(t)}, ${reasonText(why)}`)));
    if (this.#shown) this.#earlier.value = String(this.#shown.number);
  }

  #columns({ groups, missing, explanation, collectives }: Stacks): Child[] {
    const silent = Object.entries(missing);
    const gone = silent.length ? h('section', { class: 'dd-stackcol' }, h('div', { class: 'dd-stackhead' }, h('b', {}, __('No stack'))), ...silent.map(missingLine)) : null;
    const sentence = explanation ? h('p', { class: 'dd-stacknote dd-s12' }, ...quoted(explanation)) : null;
    return [sentence, collectivesTable(collectives), h('div', { class: 'dd-stackcols' }, ...groups.map((group) => this.#column(group)), gone)];
  }

  #column(group: StackGroup): HTMLElement {
    const name = rankSpans(group.ranks);
    const mark = group.differs ? h('span', { class: 'dd-tag dd-tag-warn' }, __('differs')) : null;
    const head = h('div', { class: 'dd-stackhead' }, h('div', { class: 'dd-chips' }, ...chips(group), mark), ...processSummary(group));
    const frames = blocks(group.frames).map((block) => this.#block(block));
    const label = group.at ? __('%1: %2', name, group.at) : name;
    return h('section', { class: group.differs ? 'dd-stackcol dd-differs' : 'dd-stackcol', 'aria-label': label, tabindex: 0 }, head, ...frames, otherThreads(group.threads));
  }

  #block(frames: StackFrame[]): HTMLElement {
    const [first] = frames;
    if (first && frames.length === 1) return this.#frame(first);
    const packages = listing([...new Set(frames.map(({ file }) => packageOf(file)))].slice(0, 3));
    return folded(h('span', { class: 'dd-ell' }, _n('%1 frame of %2', '%1 frames of %2', frames.length, packages)), 'dd-frame', ...frames.map((frame) => this.#frame(frame)));
  }

  #frame(frame: StackFrame): HTMLElement {
    const isUserFrame = isUserCode(frame);
    const where = frame.cell === null ? frame.label || frame.file : __('cell [%1]', frame.cell);
    const lineText = h('span', { class: 'dd-nw' }, __('line %1', frame.line));
    const open = isUserFrame ? this.reach(this.root, frame.cell) : null;
    const line = open ? onClick(h('button', { type: 'button', class: 'dd-link dd-nw' }, __('line %1', frame.line)), () => open(frame.line)) : lineText;
    const name = h('b', { class: isUserFrame ? 'dd-mono dd-own' : 'dd-mono dd-plain', title: frame.file }, frame.function || where);
    const head = h('div', { class: isUserFrame ? 'dd-stackframe dd-own' : 'dd-stackframe' }, name, h('span', { class: 'dd-sub dd-ell', title: frame.file }, where), line);
    const source = isUserFrame && frame.source ? h('div', { class: 'dd-stackline dd-mono' }, ...python(frame.source.trim())) : null;
    return h('div', {}, head, source);
  }
}

const isUserCode = ({ kind }: StackFrame): boolean => kind === 'cell' || kind === 'user';

/** The newest frame and the user's frames are shown; frames between them are folded. */
function blocks(frames: StackFrame[]): StackFrame[][] {
  const result: StackFrame[][] = [];
  frames.forEach((frame, at) => {
    const last = result.at(-1);
    if (at > 1 && last?.[0] && !isUserCode(frame) && !isUserCode(last[0])) last.push(frame);
    else result.push([frame]);
  });
  return result;
}

function chips({ ranks, processes }: StackGroup): HTMLElement[] {
  if (ranks.length > CHIPS) return [h('b', { class: 'dd-chip', title: ranks.join(', ') }, rankSpans(ranks))];
  return ranks.map((rank) => {
    const process = processes.find((entry) => entry.rank === rank);
    const swatch = h('i', { class: `dd-swatch dd-rank-${rank % 4}${rank % 8 > 3 ? ' dd-rank-dashed' : ''}` });
    return h('b', { class: 'dd-chip dd-row', title: process ? [process.host, process.pid ? __('pid %1', process.pid) : ''].filter(Boolean).join(', ') : null }, swatch, __('rank %1', rank));
  });
}

/** Return hosts, states and progress of a group: "node-b, pid 48213", "step 12, no progress for 1 min". */
function processSummary({ processes }: StackGroup): HTMLElement[] {
  const hosts = [...new Set(processes.map(({ host }) => host).filter(Boolean))];
  const [only] = processes;
  const where = processes.length === 1 && only?.pid ? [...hosts, __('pid %1', only.pid)] : hosts.length > 3 ? [_n('%1 host', '%1 hosts', hosts.length)] : hosts;
  const states = [...new Set(processes.map(({ state }) => state).filter(Boolean))].map(stateText);
  const steps = processes.flatMap(({ step }) => (step === null ? [] : [step]));
  const silent = processes.flatMap((process) => (process.silent === null ? [] : [process.silent]));
  const parts = [...where, listing(states), stepText(steps), silent.length ? __('no progress for %1', duration(Math.max(...silent))) : ''].filter(Boolean);
  return parts.length ? [h('div', { class: 'dd-dots dd-sub dd-s12 dd-num' }, ...parts.map((part) => h('span', {}, part)))] : [];
}

function stepText(steps: number[]): string {
  if (!steps.length) return '';
  const [low, high] = [Math.min(...steps), Math.max(...steps)];
  return low === high ? __('step %1', count(low)) : __('steps %1 to %2', count(low), count(high));
}

/** Return the label of a process state reported by the operating system. */
function stateText(state: string): string {
  const labels: Record<string, string> = {
    running: __('computing'), sleeping: __('waiting'), stopped: __('stopped by a signal'), 'waiting for the disk': __('waiting for the disk'),
  };
  return labels[state] ?? state;
}

function otherThreads(threads: StackThread[]): HTMLElement | null {
  if (!threads.length) return null;
  const each = threads.map(({ name, frames }) => h('div', { class: 'dd-thread' }, h('div', { class: 'dd-sub' }, name || __('Thread')), ...frames.map(threadLine)));
  return folded(h('span', {}, _n('%1 other thread', '%1 other threads', threads.length)), 'dd-frame', ...each);
}

function threadLine({ label, file, line, function: name }: StackFrame): HTMLElement {
  return h('div', { class: 'dd-mono dd-ell', title: file }, `${name || '?'}  ${label || file}:${line}`);
}

function missingLine([rank, why]: [string, string]): HTMLElement {
  return h('div', { class: 'dd-missing dd-s12' }, h('b', { class: 'dd-nw' }, __('rank %1', rank)), h('span', {}, why));
}

function captureSummary({ t, why, groups, missing }: Stacks): string {
  const differ = groups.filter(({ differs }) => differs).flatMap(({ ranks }) => ranks);
  const all = groups.reduce((sum, { ranks }) => sum + ranks.length, 0);
  const comparison = differ.length
    ? _n('%2 differs from the others', '%2 differ from the others', differ.length, rankSpans(differ.sort((a, b) => a - b)))
    : all > 1 && !Object.keys(missing).length && groups.length === 1 ? __('all ranks are at the same line') : '';
  return [clock(t), reasonText(why), comparison].filter(Boolean).join(', ');
}

function reasonText(why: string): string {
  const labels: Record<string, string> = {
    request: __('on request'), stall: __('no progress'), hang: __('hang timeout'), time: __('time limit'), failure: __('a rank failed'),
  };
  return labels[why] ?? '';
}
