/**
 * At most one notice of a panel, the one that matters most: above every figure what costs the most time or ends the job, else
 * at the foot, with the result of rank 0.
 */
import type { Card } from './card';
import { copy } from '../ui/clipboard';
import type { Used } from './jobview';
import { HERE, around, fill, h, onClick, quoted, type Child } from '../ui/dom';
import { icon } from '../ui/icons';
import { help, Refusal, sentences } from '../ui/refusal';
import { __ } from '../ui/trans';
import { ENDED } from '../ui/format';

/** The part of a card that the foot depends on. */
export type NoticeCard = Pick<Card, 'state' | 'reason' | 'notice' | 'result' | 'has_metrics'>;

const LINE = 'log(step=step, loss=loss.item())';

export class Notice {
  constructor(private readonly root: HTMLElement) {
    root.classList.add('dd-foot');
  }

  /** Show the lines for a card; `problem` is what the last button could not do, `found` whether `Finding` shows one. */
  update(card: NoticeCard, problem: unknown = '', found = false): void {
    fill(this.root, JSON.stringify([sentences(problem), found, card]), () => [result(card), found && !problem ? null : notice(card, problem)]);
  }
}

/** What slows a job or will end it, as one sentence above its figures. */
export class Finding {
  #used: Used | null = null;
  readonly #stacks: HTMLButtonElement;

  constructor(private readonly root: HTMLElement, stacks: HTMLButtonElement, ask: () => void) {
    root.classList.add('dd-finding');
    this.#stacks = onClick(stacks, ask);
  }

  take(used: Used): void {
    this.#used = used;
  }

  /** Show the finding and return whether there is one. Lost, failed and stalled jobs show their own message instead. */
  update(card: Card, stacksOpen: boolean): boolean {
    const text = card.state === 'lost' ? card.reason : card.failure || card.stall ? '' : found(this.#used);
    const asks = text !== '' && card.can_ask_stacks && !stacksOpen;
    fill(this.root, JSON.stringify([text, asks]), () => (text ? [sentence(text, asks ? this.#stacks : null)] : []));
    return text !== '';
  }
}

/** Memory that runs out ends the job; a rank that all others wait for costs more than a GPU that idles. */
function found(used: Used | null): string {
  const { marks = [], time = null } = used ?? {};
  const memory = marks.find(({ kind }) => kind === 'memory');
  const slow = time?.straggler ? time.sentences.at(-1) : undefined;
  return memory?.text ?? slow ?? marks[0]?.text ?? '';
}

/** The problem is bold; cause and remedy follow. */
function sentence(text: string, button: HTMLButtonElement | null): HTMLElement {
  const at = text.search(/[:.] /) + 1;
  const words = h('span', { class: 'dd-grow' }, h('b', {}, ...quoted(at ? text.slice(0, at) : text)), ...quoted(at ? text.slice(at) : ''));
  return h('div', { class: 'dd-notice dd-row', 'data-level': 'warning', role: 'status' }, icon('warn', 16, 'dd-ink-warn'), words, button);
}

function line(level: string, ...children: Child[]): HTMLElement {
  return h('div', { class: 'dd-notice dd-row dd-s12', 'data-level': level }, ...children);
}

function notice(card: NoticeCard, problem: unknown): HTMLElement | null {
  const text = sentences(problem) || (card.notice?.text ?? (card.state === 'lost' ? card.reason : ''));
  if (text) return line('warning', icon('warn', 16, 'dd-ink-warn'), h('span', { class: 'dd-grow' }, ...quoted(text), ' ', problem instanceof Refusal && help(problem.code)));
  return card.state === 'running' && !card.has_metrics ? noMetrics() : null;
}

function result(card: NoticeCard): HTMLElement | null {
  if (!ENDED.has(card.state) || !card.result) return null;
  const label = h('span', { class: 'dd-sub dd-nw' }, __('Result of rank 0:'));
  return line('', label, h('span', { class: 'dd-mono dd-grow dd-ell', title: card.result }, card.result));
}

function noMetrics(): HTMLElement {
  const text = h('span', { class: 'dd-grow' }, ...around(__('No metrics yet. Add %1 to see a curve.', HERE), h('span', { class: 'dd-mono' }, LINE)));
  const link = h('button', { type: 'button', class: 'dd-link dd-row' }, icon('copy', 14), __('Copy line'));
  onClick(link, () => void copy(`from distdl_jupyter import log\n${LINE}`, link));
  return line('info', icon('info', 16, 'dd-ink-brand'), text, link);
}
