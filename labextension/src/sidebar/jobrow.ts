/**
 * One row of the job list, created once per job and then updated in place. Only changed text is set, so an update does not
 * disturb the pointer, an open menu or a screen reader.
 */
import { assign, fill, h, onClick, setText, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { shortId, shownState, stateWord } from '../ui/format';
import { figure, isActive, lineText, secondLine, share, spoken } from './jobtext';
import { Sparkline } from './sparkline';
import { isStudy, titleOf } from './study';
import type { JobRow } from './types';

/** Actions of the buttons of a row. */
export interface RowActions {
  cancel(id: string): void;
  rerun(id: string): void;
  /** Show the runs of a study, or hide them. */
  unfold(id: string): void;
  menu(id: string, event: MouseEvent): void;
}

/** Heights of a row in CSS px; must match `sidebar.css`. */
export const ROW_HEIGHT = 52;
export const BAR_HEIGHT = 10;

/** Return the height of the row of a job. */
export const heightOf = (row: JobRow): number => ROW_HEIGHT + (hasBar(row) ? BAR_HEIGHT : 0);

const hasBar = (row: JobRow): boolean => row.state === 'running' && share(row) !== null;

export class JobRowView {
  readonly element: HTMLElement;
  readonly #mark = h('span', { class: 'dd-job-mark' });
  readonly #name = h('span', { class: 'dd-b' });
  readonly #id = h('span', { class: 'dd-mono dd-sub' });
  readonly #spark = new Sparkline();
  readonly #value = h('span', { class: 'dd-job-value dd-num dd-b' });
  readonly #label = h('span', { class: 'dd-job-label dd-sub dd-ell' });
  readonly #location = h('span', { class: 'dd-job-place' });
  readonly #strong = h('span', { class: 'dd-job-strong' });
  readonly #status = h('span', {});
  readonly #rest = h('span', { class: 'dd-job-more' });
  readonly #fill = h('i');
  readonly #bar = h('span', { class: 'dd-bar', hidden: true }, this.#fill);
  readonly #cancel: HTMLButtonElement;
  readonly #rerun: HTMLButtonElement;
  readonly #more: HTMLButtonElement;
  readonly #unfold: HTMLButtonElement;

  constructor(readonly id: string, actions: RowActions) {
    this.#cancel = small('close', __('Cancel'), () => actions.cancel(id));
    this.#rerun = small('rerun', __('Rerun'), () => actions.rerun(id));
    this.#unfold = small('right', __('Show the runs'), () => actions.unfold(id));
    this.#unfold.classList.add('dd-unfold');
    this.#more = small('dots', __('More actions'), (event) => actions.menu(id, event));
    const title = h('span', { class: 'dd-job-title dd-ell' }, this.#unfold, this.#name, ' ', this.#id);
    const status = h('span', { class: 'dd-job-tell dd-ell' }, this.#strong, this.#status);
    const line = h('span', { class: 'dd-job-line dd-s12 dd-num' }, this.#location, status, this.#rest);
    // For the pointer; keyboard users have shortcuts and the menu.
    const buttons = h('span', { class: 'dd-job-buttons' }, this.#cancel, this.#rerun, this.#more);
    const spark = h('span', { class: 'dd-job-spark' }, this.#spark.element);
    const cell = (...inside: HTMLElement[]): HTMLElement => h('div', { class: 'dd-contents', role: 'gridcell' }, ...inside);
    this.element = h('div', { class: 'dd-job', role: 'row', 'data-id': id }, cell(this.#mark, title, line, spark, this.#value, this.#label, this.#bar), cell(buttons));
  }

  /** Show this row at the moment `now`; see `secondLine` for `received` and `stale`. */
  update(row: JobRow, now: number, received: number, stale: boolean): void {
    const line = secondLine(row, now, received, stale);
    assign(this.element, { 'data-state': shownState(row.state, row.stalled && !stale), 'data-stale': stale, 'data-tone': line.tone });
    this.#drawMark(row, stale);
    setText(this.#name, titleOf(row));
    setText(this.#id, shortId(row.id));
    setText(this.#location, line.place);
    setText(this.#strong, line.strong);
    setText(this.#status, line.strong && line.tell ? `, ${line.tell}` : line.tell);
    setText(this.#rest, line.more && `, ${line.more}`);
    this.#drawFigure(row, now);
    this.#spark.update(row.spark);
    this.#drawBar(row);
    this.#drawButtons(row);
    const label = spoken(row, line);
    if (this.element.getAttribute('aria-label') !== label) assign(this.element, { 'aria-label': label, title: lineText(line) });
  }

  #drawMark(row: JobRow, stale: boolean): void {
    const state = shownState(row.state, row.stalled && !stale);
    const turns = !stale && (state === 'starting' || state === 'preparing');
    fill(this.#mark, `${state} ${turns}`, () => [icon(state, 16, turns ? 'dd-turn' : '')]);
    if (this.#mark.title !== stateWord(state)) this.#mark.title = stateWord(state);
  }

  #drawFigure(row: JobRow, now: number): void {
    const { value, label } = figure(row, now);
    setText(this.#value, value);
    setText(this.#label, label);
    this.#label.title = label;
  }

  #drawBar(row: JobRow): void {
    show(this.#bar, hasBar(row));
    this.#fill.style.width = `${((share(row) ?? 0) * 100).toFixed(1)}%`;
  }

  #drawButtons(row: JobRow): void {
    show(this.#cancel, isActive(row));
    const label = row.state === 'canceling' ? __('Kill now') : __('Cancel');
    if (this.#cancel.title !== label) assign(this.#cancel, { title: label, 'aria-label': label });
    show(this.#rerun, row.can_rerun && !isActive(row));
    show(this.#more, !isStudy(row));
  }

  /** Set the nesting: `unfolded` is undefined for a job; `inside` marks a run of an unfolded study. */
  nest(unfolded: boolean | undefined, inside = false): void {
    show(this.#unfold, unfolded !== undefined);
    assign(this.#unfold, { 'aria-expanded': String(unfolded === true) });
    this.element.classList.toggle('dd-member', inside);
    this.element.classList.toggle('dd-study', unfolded !== undefined);
  }

  /** Set the row's position in the list (from 1), and whether it has the focus and is selected. */
  place(position: number, active: boolean, selected: boolean): void {
    assign(this.element, { id: `dd-job-${this.id}`, 'aria-rowindex': position, 'aria-selected': String(selected) });
    this.element.classList.toggle('dd-active', active);
  }
}

function small(name: string, title: string, action: (event: MouseEvent) => void): HTMLButtonElement {
  const button = h('button', { type: 'button', class: 'dd-btn dd-icon dd-quiet', tabindex: -1, title, 'aria-label': title }, icon(name));
  return onClick(button, (event) => {
    event.stopPropagation();
    action(event);
  });
}
