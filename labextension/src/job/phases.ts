/** The seven phases of a job that sets up, with a time each, and what the curve will start with. */
import type { Card, Clock, Phase } from './card';
import { assign, fill, h, setText, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { QueuePart, type QueueActions } from './queue';
import { Staging } from './staging';
import { PHASES, phaseWord, secondsTaken, unquoted } from '../ui/format';

type Look = 'done' | 'now' | 'next';

export class Phases {
  #card: Card | null = null;
  readonly #rows = PHASES.map((phase) => new Row(phase));
  readonly #staging = new Staging();
  readonly #queue: QueuePart;
  readonly #hint = h(
    'div',
    { class: 'dd-setup-hint' },
    h('div', { class: 'dd-sub' }, __('The curve starts with the first call to')),
    h('div', { class: 'dd-mono' }, 'log(step=step, loss=loss.item())'),
  );

  constructor(private readonly root: HTMLElement, private readonly clock: Clock, actions: QueueActions) {
    root.classList.add('dd-setup');
    this.#queue = new QueuePart(actions);
    root.append(this.#queue.root, h('ol', { 'aria-label': __('Phases') }, ...this.#rows.map((row) => row.root)), this.#hint, this.#staging.root);
  }

  /** Show a newer card; the hint gives way to the log as soon as there are lines. */
  update(card: Card): void {
    this.#card = card;
    this.root.classList.toggle('dd-waits', this.#queue.update(card));
    this.#staging.update(card.staging);
    // The progress of data transfers is more useful than the hint.
    show(this.#hint, card.lines === 0 && !card.staging.length);
    this.tick();
  }

  dispose(): void {
    this.#queue.dispose();
  }

  /** Redraw the time of the phase that lasts. */
  tick(): void {
    if (!this.#card) return;
    const known = new Map(this.#card.phases.map((phase) => [phase.phase, phase]));
    for (const row of this.#rows) row.draw(known.get(row.phase), this.clock.now());
  }
}

class Row {
  readonly root: HTMLLIElement;
  readonly #mark = h('span');
  readonly #word = h('span');
  readonly #detail = h('span', { class: 'dd-sub dd-ell' });
  readonly #time = h('span', { class: 'dd-num dd-sub' });

  constructor(readonly phase: (typeof PHASES)[number]) {
    setText(this.#word, phaseWord(phase));
    this.root = h('li', { class: 'dd-phase dd-s12' }, this.#mark, this.#word, this.#detail, this.#time);
  }

  draw(view: Phase | undefined, now: number): void {
    const look: Look = view === undefined ? 'next' : view.seconds === null ? 'now' : 'done';
    assign(this.root, { 'data-look': look, 'aria-current': look === 'now' ? 'step' : null });
    fill(this.#mark, look, () => [MARKS[look]()]);
    const detail = unquoted(view?.detail ?? '');
    setText(this.#detail, detail);
    assign(this.#detail, { title: detail || null });
    const seconds = view?.seconds ?? (view?.started ? now - view.started : null);
    setText(this.#time, seconds === null ? '' : secondsTaken(seconds));
  }
}

const MARKS: Record<Look, () => SVGSVGElement> = {
  done: () => icon('check', 14, 'dd-ink-ok'),
  now: () => icon('starting', 14, 'dd-ink-brand dd-turn'),
  next: () => icon('queued', 14, 'dd-sub'),
};
