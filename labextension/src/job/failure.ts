/**
 * Why a job failed: one sentence first (which rank, of how many, when, what), then place and values, the actions, the
 * traceback with the cell's line; what the other ranks did is one folded line.
 */
import type { Card, Failure, Frame } from './card';
import { collectivesTable } from './collectives';
import { findCell, openCell } from './cells';
import { copy } from '../ui/clipboard';
import { HERE, around, fill, h, onClick, quoted, type Child } from '../ui/dom';
import { button, resumeButton } from './header';
import { icon } from '../ui/icons';
import { help } from '../ui/refusal';
import { __, _n } from '../ui/trans';
import { folded } from './text';
import { python } from './pycolor';
import { capital, clock, count, listing, rankCount, ranks, secondsTaken } from '../ui/format';

/** Returns what brings a line of the cell with an execution count into view, null when that cell is out of reach. */
export type Reach = (root: HTMLElement, cell: number | null) => ((line: number) => void) | null;

/** What can be done with a job that failed. */
export interface FailureActions {
  rerun(): void;
  resume(): void;
}

export class FailureView {
  constructor(private readonly root: HTMLElement, private readonly actions: FailureActions, private readonly reach: Reach = inNotebook) {
    root.classList.add('dd-failure');
    root.setAttribute('role', 'alert');
  }

  /** Show the failure of a card; nothing is drawn while it has none. */
  update(card: Card): void {
    const failure = card.failure;
    this.root.classList.toggle('dd-gone', failure === null);
    const reach = this.reach(this.root, failure ? (ownFrame(failure)?.cell ?? null) : null) !== null;
    fill(this.root, JSON.stringify([failure, card.can_rerun, card.can_resume, reach]), () => (failure ? this.#build(failure, card) : []));
  }

  #build(failure: Failure, card: Card): Child[] {
    return [this.#headline(failure, card), collectivesTable(failure.collectives), details(failure, card), othersOf(failure)];
  }

  #headline(failure: Failure, card: Card): HTMLElement {
    const where = h('div', { class: 'dd-s12' }, ...this.#where(failure, card));
    const actions = h('div', { class: 'dd-row dd-actions' }, ...this.#buttons(failure, card));
    const text = h('div', { class: 'dd-grow' }, sentence(failure, card), where, actions);
    return h('div', { class: 'dd-banner' }, icon('failed', 18, 'dd-ink-err'), text);
  }

  #where(failure: Failure, card: Card): Child[] {
    const deepest = ownFrame(failure);
    const hint = failure.hint || (failure.rank === null ? card.reason : '');
    return [...this.#whereWords(failure.location, deepest && this.#place(deepest)), ' ', ...quoted(hint), ' ', help(failure.code)];
  }

  #whereWords(place: string, frame: HTMLElement | undefined): Child[] {
    if (!frame) return place ? [__('On %1.', place)] : [];
    return around(place ? __('On %1, in %2.', place, HERE) : __('In %1.', HERE), frame);
  }

  #place(frame: Frame): HTMLElement {
    const text = frame.cell === null ? __('%1, line %2', frame.label, frame.line) : __('cell [%1], line %2', frame.cell, frame.line);
    const open = this.reach(this.root, frame.cell);
    if (!open) return h('span', {}, text);
    return onClick(h('button', { type: 'button', class: 'dd-link' }, text), () => open(frame.line));
  }

  #buttons(failure: Failure, card: Card): Child[] {
    const frame = failure.frames.filter(({ cell }) => cell !== null).at(-1);
    const reached = frame ? this.reach(this.root, frame.cell) : null;
    const open = reached && frame ? onClick(button('cell', __('Open cell'), 'dd-primary'), () => reached(frame.line)) : null;
    const text = failure.traceback || failure.what;
    const copyText = button('copy', __('Copy traceback'), '');
    const rerun = card.can_rerun ? onClick(button('rerun', __('Rerun'), ''), () => this.actions.rerun()) : null;
    const resume = card.can_resume ? onClick(resumeButton(), () => this.actions.resume()) : null;
    return [open, failure.traceback ? onClick(copyText, () => void copy(text, copyText)) : null, rerun, resume];
  }
}

/** The notebook around the view. */
export function inNotebook(root: HTMLElement, number: number | null): ((line: number) => void) | null {
  const cell = findCell(root, number);
  return cell && ((line) => openCell(cell, line));
}

function sentence(failure: Failure, card: Card): HTMLElement {
  const total = card.node_count * card.process_count_per_node;
  const who = failure.rank === null ? __('The job failed') : total === 1 ? __('The process failed') : __('Rank %1 of %2 failed first', failure.rank, total);
  const when = failure.when === null ? [] : [', ', h('span', { class: 'dd-num' }, clock(failure.when))];
  const what = failure.what ? [', ', h('span', { class: 'dd-what dd-b dd-ink-err' }, failure.what)] : [];
  return h('div', { class: 'dd-sentence' }, h('span', { class: 'dd-b' }, who), ...when, ...what);
}

/** The deepest frame of the user's own code, the most likely cause. */
function ownFrame(failure: Failure): Frame | undefined {
  const own = failure.frames.filter(({ kind }) => kind === 'cell' || kind === 'user');
  return own.filter(({ kind }) => kind === 'cell').at(-1) ?? own.at(-1);
}

function details(failure: Failure, card: Card): Child {
  const trace = traceback(failure);
  const side = h('div', { class: 'dd-side' }, valuesOf(failure), storyOf(failure, card));
  if (!trace && !side.childElementCount) return null;
  return h('div', { class: trace ? 'dd-details' : 'dd-details dd-single' }, trace, side.childElementCount ? side : null);
}

function partHead(title: string, more = ''): HTMLElement {
  return h('div', { class: 'dd-part dd-low' }, h('h3', { class: 'dd-h3' }, title), h('span', { class: 'dd-grow' }), h('span', { class: 'dd-sub dd-s12' }, more));
}

function traceback(failure: Failure): HTMLElement | null {
  if (!failure.frames.length && !failure.traceback) return null;
  const title = failure.rank === null ? __('Traceback') : __('Traceback of rank %1', failure.rank);
  const body = failure.frames.length ? groups(failure.frames).map(groupElement) : [h('pre', { class: 'dd-raw' }, failure.traceback)];
  const last = failure.error_type ? [h('div', { class: 'dd-last' }, h('b', { class: 'dd-ink-err' }, failure.error_type), failure.message ? `: ${failure.message}` : '')] : [];
  return h('div', { class: 'dd-trace' }, partHead(title, __('most recent call last')), h('div', { class: 'dd-tb' }, ...body, ...last, ...failure.causes.map(causeElement)));
}

function causeElement({ type, message, frames }: Failure['causes'][number]): HTMLElement {
  const label = h('span', { class: 'dd-ell' }, __('caused by:'), ' ', h('b', {}, type), message ? `: ${message}` : '');
  return folded(label, 'dd-frame', ...groups(frames).map(groupElement));
}

/** Put neighbours of the worker or of libraries together: they fold into one line. */
function groups(frames: Frame[]): Frame[][] {
  const found: Frame[][] = [];
  for (const frame of frames) {
    const last = found.at(-1);
    const folds = frame.kind === 'worker' || frame.kind === 'library';
    if (folds && last?.[0]?.kind === frame.kind) last.push(frame);
    else found.push([frame]);
  }
  return found;
}

function groupElement(group: Frame[]): HTMLElement {
  const kind = group[0]?.kind;
  if (kind !== 'worker' && kind !== 'library') return h('div', {}, ...group.map(frameElement));
  const packages = listing([...new Set(group.map(({ file }) => packageOf(file)))].slice(0, 3));
  const what = kind === 'worker' ? _n('%1 frame of the worker', '%1 frames of the worker', group.length) : _n('%1 frame of %2', '%1 frames of %2', group.length, packages);
  return folded(h('span', {}, what), 'dd-frame', ...group.map(frameElement));
}

/** The package that a library's file belongs to: "torch" of ".../site-packages/torch/nn/modules/module.py". */
export function packageOf(file: string): string {
  const parts = file.split('/');
  const at = Math.max(parts.lastIndexOf('site-packages'), parts.lastIndexOf('dist-packages'));
  return (at >= 0 ? parts[at + 1] : parts.at(-1))?.replace(/\.py$/, '') ?? file;
}

function frameElement(frame: Frame): HTMLElement {
  const inCell = frame.kind === 'cell';
  const name = h('span', { class: inCell ? 'dd-frame-name dd-ell' : 'dd-frame-name dd-mono dd-ell', title: frame.file }, frame.label || frame.file);
  const scope = inCell || frame.function === '<module>' ? [] : around(__('in %1', HERE), h('span', { class: 'dd-mono dd-ell' }, frame.function));
  const head = h('div', { class: 'dd-row dd-frame' }, inCell ? icon('cell', 14) : null, name, ...scope, h('span', { class: 'dd-grow' }), h('span', { class: 'dd-nw' }, __('line %1', frame.line)));
  const lines = frame.source.map(([number, text]) => lineElement(number, text, number === frame.line));
  return h('div', {}, head, lines.length ? h('div', { class: 'dd-lines' }, ...lines) : null);
}

function lineElement(number: number, text: string, hit: boolean): HTMLElement {
  const mark = h('span', {}, hit ? '➜' : '');
  return h('div', { class: hit ? 'dd-line dd-line-hit' : 'dd-line' }, mark, h('span', {}, String(number)), h('span', {}, ...python(text)));
}

function valuesOf(failure: Failure): HTMLElement | null {
  if (!failure.values.length) return null;
  const frame = failure.values_at === null ? undefined : failure.frames[failure.values_at];
  const title = !frame ? __('Values') : frame.cell !== null ? __('Values at line %1', frame.line) : __('Values at %1, line %2', frame.label, frame.line);
  const rows = failure.values.flatMap(([name, value]) => [h('dt', { class: 'dd-mono' }, name), h('dd', { class: 'dd-mono' }, value)]);
  return h('div', {}, partHead(title), h('dl', { class: 'dd-values' }, ...rows));
}

/** When training started, when a rank failed, and when the other ranks ended. */
function storyOf(failure: Failure, card: Card): HTMLElement | null {
  if (failure.when === null) return null;
  const total = card.node_count * card.process_count_per_node;
  const started = card.phases.find(({ phase }) => phase === 'train')?.started ?? null;
  const what = failure.rank === null ? failure.what : shortened(failure.what);
  const moments: [number, string, boolean][] = started === null ? [] : [[started, __('%1 started training', rankCount(total)), false]];
  moments.push([failure.when, failure.rank === null || total === 1 ? what : event([failure.rank], what), true]);
  for (const { what: end, members, after } of endings(failure)) moments.push([failure.when + after, event(members, end), false]);
  const rows = moments.map(([t, text, bad]) => h('li', { class: bad ? 'dd-bad' : '' }, h('span', { class: 'dd-num' }, clock(t, true)), h('i'), h('span', {}, text)));
  return h('div', {}, partHead(__('What happened')), h('ol', { class: 'dd-story' }, ...rows));
}

/** "Rank 2 raised RuntimeError", "Ranks 0 and 1: ended by SIGTERM" */
function event(members: number[], what: string): string {
  const isException = /^[\w.]+$/.test(what);
  return capital(isException ? __('%1 raised %2', ranks(members), what) : `${ranks(members)}: ${what}`);
}

function othersOf(failure: Failure): HTMLElement | null {
  if (!failure.others.length) return null;
  const title = h('span', { class: 'dd-b dd-nw' }, _n('%2 rank ended because of it', '%2 ranks ended because of it', failure.others.length, count(failure.others.length)));
  const list = failure.others.map(({ rank, what, after }) => h('li', {}, __('rank %1: %2, after %3', rank, what, secondsTaken(after))));
  const label = h('span', { class: 'dd-row' }, title, h('span', { class: 'dd-sub dd-s12 dd-ell' }, summary(failure)));
  return h('div', { class: 'dd-others' }, folded(label, 'dd-others-line', h('ul', { class: 'dd-s12' }, ...list)));
}

/** "ranks 0 and 1: HorovodInternalError after 0.6 s; rank 3: ended by SIGTERM after 2.1 s" */
const summary = (failure: Failure): string =>
  endings(failure).map(({ what, members, after }) => __('%1: %2 after %3', ranks(members), what, secondsTaken(after))).join('; ');

/** How the other ranks ended, grouped; `after` is that of the last of a group. */
function endings(failure: Failure): { what: string; members: number[]; after: number }[] {
  const alike = new Map<string, { what: string; members: number[]; after: number }>();
  for (const { rank, what, after } of failure.others) {
    const key = shortened(what);
    const group = alike.get(key) ?? { what: key, members: [], after };
    group.members = [...group.members, rank].sort((a, b) => a - b);
    group.after = Math.max(group.after, after);
    alike.set(key, group);
  }
  return [...alike.values()];
}

const shortened = (what: string): string => what.split(':')[0] ?? what;
