/** The foot of a panel: what rank 0 returned, and at most one notice, the one that matters most. */
import type { Card } from './card';
import { copy } from '../ui/clipboard';
import { HERE, around, fill, h, onClick, type Child } from '../ui/dom';
import { quoted } from './text';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { ENDED } from '../ui/format';

/** The part of a card that the foot depends on. */
export type NoticeCard = Pick<Card, 'state' | 'reason' | 'notice' | 'result' | 'has_metrics'>;

const LINE = 'log(step=step, loss=loss.item())';

export class Notice {
  constructor(private readonly root: HTMLElement) {
    root.classList.add('dd-foot');
  }

  /** Show the lines for a card; `problem` is what the last button could not do. */
  update(card: NoticeCard, problem = ''): void {
    fill(this.root, JSON.stringify([problem, card]), () => [result(card), notice(card, problem)]);
  }
}

function line(level: string, ...children: Child[]): HTMLElement {
  return h('div', { class: 'dd-notice dd-row dd-s12', 'data-level': level }, ...children);
}

function notice(card: NoticeCard, problem: string): HTMLElement | null {
  const text = problem || (card.notice?.text ?? (card.state === 'lost' ? card.reason : ''));
  if (text) return line('warning', icon('warn', 16, 'dd-ink-warn'), h('span', { class: 'dd-grow' }, ...quoted(text)));
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
