/**
 * The list of jobs: a grid that keeps the focus itself and points at its active row, so rows can come, go and change
 * under it. Only the rows near the window exist. Where the user looks stays where it is when jobs come in above.
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
  /** The Delete key: cancels a job that lives, deletes one that has ended. */
  discard(id: string): void;
  /** Show the runs of a study, or hide them. */
  unfold(id: string, on: boolean): void;
  /** The active row or the chosen ones are others now. */
  pointed(): void;
}

export class JobList {
  readonly element: HTMLElement;
  readonly #list = h('div', { class: 'dd-joblist', role: 'grid', tabindex: 0, 'aria-multiselectable': 'true', 'aria-label': __('Jobs') });
  readonly #content = h('div', { class: 'dd-jobs-content' }, this.#list);
  readonly #views = new Map<string, JobRowView>();
  readonly #track = new Track();
  readonly #chosen = new Set<string>();
  /** The job whose page is in front. */
  #front: string | null = null;
  readonly #rowActions: RowActions;
  #items: readonly Item[] = [];
  #index = new Map<string, number>();
  #active: string | null = null;
  #asked: { id: string; question: InlineConfirm; height: number } | null = null;
  #moment = { now: 0, stale: false };
  #pressing = false;

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

  /** The job that keys and arg-less commands mean. */
  get active(): JobRow | null {
    const row = this.#rowOf(this.#active);
    return row && isStudy(row) ? null : row;
  }

  /** The chosen jobs, from top to bottom. */
  get chosen(): string[] {
    return this.#items.filter(({ row }) => this.#chosen.has(row.id) && !isStudy(row)).map(({ row }) => row.id);
  }

  /** Show these jobs, in this order. */
  show(items: readonly Item[], now: number, stale: boolean): void {
    const anchor = this.#anchor();
    this.#items = items;
    this.#moment = { now, stale };
    this.#index = new Map(items.map(({ row }, at) => [row.id, at]));
    for (const id of [...this.#chosen]) if (!this.#index.has(id)) this.#chosen.delete(id);
    if (this.#active !== null && !this.#index.has(this.#active)) this.#active = null;
    if (this.#asked && !this.#index.has(this.#asked.id)) this.#asked.question.close(false);
    this.#lay();
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

  /** Make this the chosen job, as its page is in front; what was chosen by hand is left alone. */
  choose(id: string | null): void {
    const before = this.#front;
    this.#front = id;
    if ([...this.#chosen].some((one) => one !== before)) return;
    this.#chosen.clear();
    if (id !== null) this.#chosen.add(id);
    this.#draw();
    this.actions.pointed();
  }

  /** Ask a question below the row of a job; the focus goes to it and comes back. Null when the row is not shown. */
  async ask(id: string, question: InlineConfirm): Promise<boolean> {
    this.#asked?.question.close(false);
    this.#asked = { id, question, height: 0 };
    this.#content.append(question.element);
    this.#asked.height = question.element.offsetHeight;
    this.#lay();
    this.#activate(id);
    question.focus();
    const yes = await question.answered;
    if (this.#asked?.question === question) this.#asked = null;
    this.#lay();
    this.#draw();
    this.focus();
    return yes;
  }

  #rowOf(id: string | null): JobRow | null {
    return id === null ? null : (this.#items[this.#index.get(id) ?? -1]?.row ?? null);
  }

  #lay(): void {
    const { id = '', height = 0 } = this.#asked ?? {};
    this.#track.lay(this.#items.map(({ row }) => heightOf(row) + (row.id === id ? height : 0)));
    this.#content.style.height = `${this.#track.height}px`;
    const at = this.#index.get(id);
    if (this.#asked && at !== undefined) this.#asked.question.element.style.top = `${this.#track.bottom(at) - height}px`;
  }

  /** The row at the top of the window and how far it is scrolled; null at the very top, where new jobs may show. */
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
    const wanted = new Set(this.#items.slice(first, end).map(({ row }) => row.id));
    if (this.#active !== null && this.#index.has(this.#active)) wanted.add(this.#active);
    for (const [id, view] of this.#views) {
      if (wanted.has(id)) continue;
      view.element.remove();
      this.#views.delete(id);
    }
    const order = [...wanted].sort((a, b) => (this.#index.get(a) ?? 0) - (this.#index.get(b) ?? 0));
    order.forEach((id, at) => this.#drawRow(id, at));
    assign(this.#list, { 'aria-rowcount': this.#items.length });
    this.#list.setAttribute('aria-activedescendant', this.#active === null ? '' : `dd-job-${this.#active}`);
    assign(this.#list, { 'data-active-state': this.active?.state });
  }

  #drawRow(id: string, place: number): void {
    const at = this.#index.get(id) ?? 0;
    const item = this.#items[at];
    if (!item) return;
    let view = this.#views.get(id);
    if (!view) this.#views.set(id, (view = new JobRowView(id, this.#rowActions)));
    view.update(item.row, this.#moment.now, item.heard, this.#moment.stale);
    view.nest(item.unfolded, item.inside);
    view.place(at + 1, id === this.#active, this.#chosen.has(id));
    const top = `${this.#track.top(at)}px`;
    if (view.element.style.top !== top) view.element.style.top = top;
    const there = this.#list.children[place];
    if (there !== view.element) this.#list.insertBefore(view.element, there ?? null);
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

  /** A press in the list must not move the focus to the button under the pointer, which may be gone a moment later. */
  #pressed(event: MouseEvent): void {
    if (this.#idAt(event) === null) return;
    event.preventDefault();
    this.#pressing = true;
    this.#list.focus({ preventScroll: true });
    this.#pressing = false;
  }

  /** The focus shows the active row, but not while a row is pressed: that row must stay under the pointer. */
  #focused(): void {
    if (!this.#pressing) this.#activate(this.#active ?? this.#items[0]?.row.id ?? null);
  }

  #clicked(event: MouseEvent): void {
    const id = this.#idAt(event);
    if (id === null) return;
    if (event.ctrlKey || event.metaKey) this.#toggle(id);
    else if (event.shiftKey) this.#chooseTo(id);
    else this.#open(id);
    this.#activate(id);
  }

  #open(id: string): void {
    this.#chosen.clear();
    this.#chosen.add(id);
    this.#draw();
    this.actions.open(id);
  }

  #toggle(id: string): void {
    if (!this.#chosen.delete(id)) this.#chosen.add(id);
  }

  /** Choose all rows from the active one to this one. */
  #chooseTo(id: string): void {
    const ends = [this.#index.get(this.#active ?? id) ?? 0, this.#index.get(id) ?? 0];
    for (const { row } of this.#items.slice(Math.min(...ends), Math.max(...ends) + 1)) this.#chosen.add(row.id);
  }

  #key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const id = this.#active;
    const to = this.#target(event.key);
    if (to !== null) {
      if (event.shiftKey && id !== null) this.#chosen.add(id).add(this.#items[to]?.row.id ?? id);
      this.#activate(this.#items[to]?.row.id ?? null);
    } else if (id !== null && event.key === 'Enter') this.#open(id);
    else if (id !== null && (event.key === 'ArrowRight' || event.key === 'ArrowLeft')) this.actions.unfold(id, event.key === 'ArrowRight');
    else if (id !== null && event.key === 'Delete') this.actions.discard(id);
    else if (id !== null && event.key === ' ') this.#toggleActive(id);
    else if (event.key === 'Escape' && this.#chosen.size) this.#clear();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #toggleActive(id: string): void {
    this.#toggle(id);
    this.#activate(id);
  }

  #clear(): void {
    this.#chosen.clear();
    this.#activate(this.#active);
  }

  #target(key: string): number | null {
    const last = this.#items.length - 1;
    const at = this.#index.get(this.#active ?? '') ?? 0;
    const page = Math.max(1, Math.floor(this.element.clientHeight / 52) - 1);
    const to: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last, PageDown: at + page, PageUp: at - page };
    const wanted = to[key];
    return wanted === undefined || last < 0 ? null : Math.max(0, Math.min(last, wanted));
  }

  /** The menu key asks on the list as a whole: the menu then opens at the active row. */
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

  /** Ask for the menu of a row at a place of the window: the owner of the menus listens for this event. */
  #openMenu(id: string, clientX: number, clientY: number): void {
    const view = this.#views.get(id);
    view?.element.dispatchEvent(new MouseEvent('contextmenu', { bubbles: true, cancelable: true, clientX, clientY, button: 2 }));
  }
}
