/** The foot of a panel: at most one line, the one that matters most. Nothing stands there when all is well. */
import type { Card } from './card';
import { copy } from './clipboard';
import { assign, fill, h, onClick, type Child } from './dom';
import { icon } from './icons';
import { ENDED } from './words';

/** The part of a card that the foot depends on. */
export type NoticeCard = Pick<Card, 'state' | 'reason' | 'notice' | 'result' | 'has_metrics'>;

const LINE = 'log(step=step, loss=loss.item())';

export class Notice {
  constructor(private readonly root: HTMLElement) {
    root.classList.add('dd-notice', 'dd-row', 'dd-s12');
  }

  /** Show the line for a card; `problem` is what the last button could not do. */
  update(card: NoticeCard, problem = ''): void {
    const [level, children] = problem ? warning(problem) : choose(card);
    this.root.classList.toggle('dd-gone', children.length === 0);
    assign(this.root, { 'data-level': level });
    fill(this.root, JSON.stringify([problem, card.state, card.notice, card.result, card.has_metrics]), () => children);
  }
}

type Line = [level: string, children: Child[]];

function choose(card: NoticeCard): Line {
  if (card.notice) return warning(card.notice.text);
  if (card.state === 'lost' && card.reason) return warning(card.reason);
  if (ENDED.has(card.state)) return card.result ? resultOf(card) : ['', []];
  if (card.state === 'running' && !card.has_metrics) return noMetrics();
  return ['', []];
}

function warning(text: string): Line {
  return ['warning', [icon('warn', 16, 'dd-ink-warn'), h('span', { class: 'dd-grow' }, text)]];
}

function resultOf(card: NoticeCard): Line {
  const label = h('span', { class: 'dd-sub dd-nw' }, 'Result of rank 0:');
  return ['', [label, h('span', { class: 'dd-mono dd-grow dd-ell', title: card.result }, card.result)]];
}

function noMetrics(): Line {
  const text = h('span', { class: 'dd-grow' }, 'No metrics yet. Add ', h('span', { class: 'dd-mono' }, LINE), ' to see a curve.');
  const link = h('button', { type: 'button', class: 'dd-link dd-row' }, icon('copy', 14), 'Copy line');
  return ['info', [icon('info', 16, 'dd-ink-brand'), text, onClick(link, () => void copy(`from distdl_jupyter import log\n${LINE}`, link))]];
}
