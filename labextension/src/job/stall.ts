/**
 * The line of a job that makes no progress: what is known of it in one sentence, since when, and the button that shows
 * the stacks.
 */
import type { Card, Clock } from './card';
import { collectivesTable } from './collectives';
import { assign, fill, h, quoted, setText, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { clock as time, duration } from '../ui/format';

export class StallLine {
  readonly root = h('div', { hidden: true });
  readonly #table = h('div');
  readonly #text = h('span', { class: 'dd-grow', role: 'status' });
  readonly #since = h('span', { class: 'dd-num dd-nw' });

  constructor(private readonly clock: Clock, button: HTMLButtonElement) {
    const line = h('div', { class: 'dd-stall dd-row dd-s12' }, icon('warn', 16, 'dd-ink-warn'), this.#text, this.#since, button);
    this.root.append(line, this.#table);
  }

  /** Show the line while a job stalls; `hidden` is set if it does not fit. */
  update({ stall }: Card, hidden: boolean): void {
    show(this.root, stall !== null && !hidden);
    if (!stall) return;
    fill(this.#text, stall.text, () => quoted(stall.text));
    fill(this.#table, JSON.stringify(stall.collectives), () => [collectivesTable(stall.collectives)]);
    setText(this.#since, __('%1 without progress', duration(Math.max(0, this.clock.now() - stall.since))));
    assign(this.#since, { title: __('since %1', time(stall.since)) });
  }

  /** Show the table of collective operations, or hide it while the stacks below show it. */
  showTable(shown: boolean): void {
    show(this.#table, shown);
  }
}
