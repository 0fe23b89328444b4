/**
 * The list of jobs: a grid that keeps the focus and references its active row, so rows can be added, removed and changed.
 * Only rows near the viewport exist. The scroll position is kept when jobs are added above.
 */
import { assign, h } from '../ui/dom';
import { __ } from '../ui/trans';
import type { InlineConfirm } from '../ui/inlineconfirm';
import { heightOf, JobRowView, type RowActions } from './jobrow';
import type { JobRow } from './types';
import { isStudy, type Item } from './study';
import { Track } from './virtual';

/** What keys and clicks in the list do. */
export interface ListActions {
  open(id: string): void;
  cancel(id: string): void;
  rerun(id: string): void;
  /** Handle the Delete key: cancel an active job, delete an ended one. */
  discard(id: string): void;
  /** Show the runs of a study, or hide them. */
  unfold(id: string, on: boolean): void;
  /** The active row or the selection has changed. */
  pointed(): void;
}

export class JobList {
  readonly element: HTMLElement;
  readonly #list = h('div', { class: 'dd-joblist', role: 'grid', tabindex: 0, 'aria-multiselectable': 'true', 'aria-label': __('Jobs') });
  readonly #content = h('div', { class: 'dd-jobs-content' }, this.#list);
  readonly #views = new Map<string, JobRowView>();
  readonly #track = new Track();
  readonly #selected = new Set<string>();
  /** The job whose page is in front. */
  #front: string | null = null;
  readonly #rowActions: RowActions;
  #items: readonly Item[] = [];
  #index = new Map<string, number>();
  #active: string | null = null;
  #confirm: { id: string; question: InlineConfirm; height: number } | null = null;
  #moment = { now: 0, stale: false };
  #isPressing = false;

  constructor(private readonly actions: ListActions) {
    this.element = h('div', { class: 'dd-jobs' }, this.#content);
    this.#rowActions = {
      cancel: (id) => actions.cancel(id),
      rerun: (id) => actions.rerun(id),
      unfold: (id) => actions.unfold(id, !this.#items[this.#index.get(id) ?? -1]?.unfolded),
      menu: (id, event) => this.#openMenu(id, event.clientX, event.clientY),
    };
    this.element.addEventListener('scroll', () => this.#draw(), { passive: true });
    this.#list.addEventListener('mousedown', (event) => this.#pressed(event));
    this.#list.addEventListener('click', (event) => this.#clicked(event));
    this.#list.addEventListener('keydown', (event) => this.#key(event));
    this.#list.addEventListener('contextmenu', (event) => this.#contextMenu(event));
    this.#list.addEventListener('focus', () => this.#focused());
    new ResizeObserver(() => this.#draw()).observe(this.element);
  }

  /** The target of keys and of commands without arguments. */
  get active(): JobRow | null {
    const row = this.#rowOf(this.#active);
    return row && isStudy(row) ? null : row;
  }

  /** The ids of the selected jobs, from top to bottom. */
  get chosen(): string[] {
    return this.#items.filter(({ row }) => this.#selected.has(row.id) && !isStudy(row)).map(({ row }) => row.id);
  }

  /** Show these jobs, in this order. */
  show(items: readonly Item[], now: number, stale: boolean): void {
    const anchor = this.#anchor();
    this.#items = items;
    this.#moment = { now, stale };
    this.#index = new Map(items.map(({ row }, at) => [row.id, at]));
    for (const id of [...this.#selected]) if (!this.#index.has(id)) this.#selected.delete(id);
    if (this.#active !== null && !this.#index.has(this.#active)) this.#active = null;
    if (this.#confirm && !this.#index.has(this.#confirm.id)) this.#confirm.question.close(false);
    this.#layOut();
    this.#restore(anchor);
    this.#draw();
  }

  /** Redraw what depends on the time. */
  tick(now: number, stale: boolean): void {
    this.#moment = { now, stale };
    this.#draw();
  }

  focus(): void {
    this.#list.focus();
  }

  /** Select the job whose page is in front, unless the user has selected others. */
  choose(id: string | null): void {
    const before = this.#front;
    this.#front = id;
    if ([...this.#selected].some((selected) => selected !== before)) return;
    this.#selected.clear();
    if (id !== null) this.#selected.add(id);
    this.#draw();
    this.actions.pointed();
  }

  /** Show a confirmation below the row of a job and return the answer. The focus moves to it and back. */
  async ask(id: string, question: InlineConfirm): Promise<boolean> {
    this.#confirm?.question.close(false);
    this.#confirm = { id, question, height: 0 };
    this.#content.append(question.element);
    this.#confirm.height = question.element.offsetHeight;
    this.#layOut();
    this.#activate(id);
    question.focus();
    const yes = await question.answered;
    if (this.#confirm?.question === question) this.#confirm = null;
    this.#layOut();
    this.#draw();
    this.focus();
    return yes;
  }

  #rowOf(id: string | null): JobRow | null {
    return id === null ? null : (this.#items[this.#index.get(id) ?? -1]?.row ?? null);
  }

  #layOut(): void {
    const { id = '', height = 0 } = this.#confirm ?? {};
    this.#track.lay(this.#items.map(({ row }) => heightOf(row) + (row.id === id ? height : 0)));
    this.#content.style.height = `${this.#track.height}px`;
    const at = this.#index.get(id);
    if (this.#confirm && at !== undefined) this.#confirm.question.element.style.top = `${this.#track.bottom(at) - height}px`;
  }

  /** Return the topmost visible row and its scroll offset; null at the very top, so that new jobs become visible. */
  #anchor(): { id: string; over: number } | null {
    const top = this.element.scrollTop;
    const at = this.#track.at(top);
    const item = this.#items[at];
    return top > 0 && item ? { id: item.row.id, over: top - this.#track.top(at) } : null;
  }

  #restore(anchor: { id: string; over: number } | null): void {
    const at = anchor && this.#index.get(anchor.id);
    if (anchor && at !== null && at !== undefined) this.element.scrollTop = this.#track.top(at) + anchor.over;
  }

  #draw(): void {
    const [first, end] = this.#track.range(this.element.scrollTop, this.element.clientHeight);
    const visible = new Set(this.#items.slice(first, end).map(({ row }) => row.id));
    if (this.#active !== null && this.#index.has(this.#active)) visible.add(this.#active);
    for (const [id, view] of this.#views) {
      if (visible.has(id)) continue;
      view.element.remove();
      this.#views.delete(id);
    }
    const order = [...visible].sort((a, b) => (this.#index.get(a) ?? 0) - (this.#index.get(b) ?? 0));
    order.forEach((id, at) => this.#drawRow(id, at));
    assign(this.#list, { 'aria-rowcount': this.#items.length });
    this.#list.setAttribute('aria-activedescendant', this.#active === null ? '' : `dd-job-${this.#active}`);
    assign(this.#list, { 'data-active-state': this.active?.state });
  }

  #drawRow(id: string, position: number): void {
    const at = this.#index.get(id) ?? 0;
    const item = this.#items[at];
    if (!item) return;
    let view = this.#views.get(id);
    if (!view) this.#views.set(id, (view = new JobRowView(id, this.#rowActions)));
    view.update(item.row, this.#moment.now, item.heard, this.#moment.stale);
    view.nest(item.unfolded, item.inside);
    view.place(at + 1, id === this.#active, this.#selected.has(id));
    const top = `${this.#track.top(at)}px`;
    if (view.element.style.top !== top) view.element.style.top = top;
    const current = this.#list.children[position];
    if (current !== view.element) this.#list.insertBefore(view.element, current ?? null);
  }

  #activate(id: string | null): void {
    this.#active = id;
    const at = id === null ? undefined : this.#index.get(id);
    if (at !== undefined) this.#reveal(at);
    this.#draw();
    this.actions.pointed();
  }

  #reveal(at: number): void {
    const { scrollTop, clientHeight } = this.element;
    const [top, bottom] = [this.#track.top(at), this.#track.bottom(at)];
    if (top < scrollTop) this.element.scrollTop = top;
    else if (bottom > scrollTop + clientHeight) this.element.scrollTop = bottom - clientHeight;
  }

  #idAt(event: Event): string | null {
    return event.target instanceof Element ? (event.target.closest<HTMLElement>('.dd-job')?.dataset['id'] ?? null) : null;
  }

  /** Keep the focus in the list on a press: the button under the pointer may be removed by an update. */
  #pressed(event: MouseEvent): void {
    if (this.#idAt(event) === null) return;
    event.preventDefault();
    this.#isPressing = true;
    this.#list.focus({ preventScroll: true });
    this.#isPressing = false;
  }

  /** Scroll to the active row on focus, except during a press, when the pressed row must stay under the pointer. */
  #focused(): void {
    if (!this.#isPressing) this.#activate(this.#active ?? this.#items[0]?.row.id ?? null);
  }

  #clicked(event: MouseEvent): void {
    const id = this.#idAt(event);
    if (id === null) return;
    if (event.ctrlKey || event.metaKey) this.#toggle(id);
    else if (event.shiftKey) this.#selectTo(id);
    else this.#open(id);
    this.#activate(id);
  }

  #open(id: string): void {
    this.#selected.clear();
    this.#selected.add(id);
    this.#draw();
    this.actions.open(id);
  }

  #toggle(id: string): void {
    if (!this.#selected.delete(id)) this.#selected.add(id);
  }

  /** Select all rows from the active row to this one. */
  #selectTo(id: string): void {
    const ends = [this.#index.get(this.#active ?? id) ?? 0, this.#index.get(id) ?? 0];
    for (const { row } of this.#items.slice(Math.min(...ends), Math.max(...ends) + 1)) this.#selected.add(row.id);
  }

  #key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const id = this.#active;
    const to = this.#target(event.key);
    if (to !== null) {
      if (event.shiftKey && id !== null) this.#selected.add(id).add(this.#items[to]?.row.id ?? id);
      this.#activate(this.#items[to]?.row.id ?? null);
    } else if (id !== null && event.key === 'Enter') this.#open(id);
    else if (id !== null && (event.key === 'ArrowRight' || event.key === 'ArrowLeft')) this.actions.unfold(id, event.key === 'ArrowRight');
    else if (id !== null && event.key === 'Delete') this.actions.discard(id);
    else if (id !== null && event.key === ' ') this.#toggleActive(id);
    else if (event.key === 'Escape' && this.#selected.size) this.#clear();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #toggleActive(id: string): void {
    this.#toggle(id);
    this.#activate(id);
  }

  #clear(): void {
    this.#selected.clear();
    this.#activate(this.#active);
  }

  #target(key: string): number | null {
    const last = this.#items.length - 1;
    const at = this.#index.get(this.#active ?? '') ?? 0;
    const page = Math.max(1, Math.floor(this.element.clientHeight / 52) - 1);
    const to: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last, PageDown: at + page, PageUp: at - page };
    const index = to[key];
    return index === undefined || last < 0 ? null : Math.max(0, Math.min(last, index));
  }

  /** Open the menu. The menu key targets the whole list, so the menu opens at the active row. */
  #contextMenu(event: MouseEvent): void {
    const id = this.#idAt(event);
    if (id !== null) {
      this.#activate(id);
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    const row = this.#active === null ? undefined : this.#views.get(this.#active)?.element.getBoundingClientRect();
    if (this.#active !== null && row) this.#openMenu(this.#active, row.left + 24, row.bottom - 8);
  }

  /** Open the menu of a row at a position of the window by dispatching an event to the owner of the menus. */
  #openMenu(id: string, clientX: number, clientY: number): void {
    const view = this.#views.get(id);
    view?.element.dispatchEvent(new MouseEvent('contextmenu', { bubbles: true, cancelable: true, clientX, clientY, button: 2 }));
  }
}
