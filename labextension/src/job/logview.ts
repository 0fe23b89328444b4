/**
 * The log of a job: time, rank, stream, text; a tab for each rank; search; follow.
 *
 * Only the rows in sight are in the page: all rows have one height, so the place of each is known. A row keeps its element
 * while it is in sight, so a selection of text survives new lines. The owner calls `update` when the `LogStore` changes;
 * rows that are not here yet are fetched when they come into sight, are searched, or are too few to fill the view.
 */
import { arrowKeys, assign, fill, h, onClick, setText, show } from '../ui/dom';
import { button } from './header';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import { LogSearch } from './logsearch';
import { fromWire, places, type Lines, type LogStore, type Row, type WireRow } from './logstore';
import { load, pictureElement, pictureOf, type PictureSource } from './pictures';
import { clock, count } from '../ui/format';

let logs = 0;
const HEIGHT = 18;
const SPARE = 8;
const PADDING = 6;
/** Rows below a failure. */
const FOLDED = 6;
/** Time slice of a search in milliseconds, so that the page stays responsive. */
const SLICE = 8;
/** Maximum number of ranks with tabs; more are listed in a select. */
const MAX_TABS = 8;
/** Key of the line with the number of lines that are not loaded. */
const GAP = 'gap';

/** State of a view that is kept when it is rebuilt. */
export interface LogViewState {
  rank: number | null;
  /** Show only what was printed on stderr. */
  stderr: boolean;
  query: string;
  follow: boolean;
  scroll: number;
  /** Show only the last lines of one rank, below a failure. */
  folded: boolean;
}

export interface Setting {
  world: number;
  /** Rank whose last lines are shown while folded, and how its last error line begins. */
  failed: { rank: number | null; text: string } | null;
}

export const newLogViewState = (): LogViewState => ({ rank: null, stderr: false, query: '', follow: true, scroll: 0, folded: true });

export class LogView {
  /** What is shown: the rows at their places, then the lines that are being redrawn, at the places behind. */
  #lines: Lines = { from: 0, to: 0, held: 0, at: () => undefined };
  #open: WireRow[] = [];
  /** The place of the first row of the sheet, and of which rank and stream it is. */
  #from = 0;
  #of: number | null = null;
  #ofStderr = false;
  /** Position of the line above all rows with the number of earlier lines; null if there are none. */
  #gap: number | null = null;
  #search: LogSearch | null = null;
  #openMatches: number[] = [];
  #slice: ReturnType<typeof setTimeout> | undefined;
  /** Whether the newest match is to be brought into sight once it is found. */
  #seeking = false;
  /** Places of the current match and of the row that is shown whole. */
  #current = -1;
  #selected: number | null = null;
  #seen = 0;
  #setting: Setting = { world: 1, failed: null };
  #drawn = new Map<string, HTMLElement>();
  #expected = -1;

  readonly #tabs = h('div', { class: 'dd-tabs', role: 'tablist', 'aria-label': __('Log of') });
  readonly #input = h('input', { type: 'text', placeholder: __('Search'), 'aria-label': __('Search the log'), spellcheck: 'false' });
  readonly #found = h('span', { class: 'dd-sub dd-found-count dd-num', 'aria-live': 'polite' });
  readonly #field = h('label', { class: 'dd-field dd-search', title: __('Search the log ( / )') }, icon('search', 14, 'dd-sub'), this.#input, this.#found);
  readonly #fresh = h('span', { class: 'dd-fresh dd-num' });
  readonly #follow = button('follow', __('Follow'), 'dd-quiet dd-icon dd-follow');
  readonly #both = h('button', { type: 'button' }, 'stdout + stderr');
  readonly #stderr = h('button', { type: 'button', class: 'dd-num' });
  readonly #streams = h('div', { class: 'dd-seg dd-streams', role: 'group', 'aria-label': __('Streams') }, this.#both, this.#stderr);
  readonly #bar = h('div', { class: 'dd-part' }, this.#tabs, this.#field, this.#streams, this.#follow);
  readonly #foldedTitle = h('h3', { class: 'dd-h3' });
  readonly #foldedCount = h('span', { class: 'dd-sub dd-s12' });
  readonly #unfold = h('button', { type: 'button', class: 'dd-link dd-s12' }, __('Show full log'));
  readonly #foldedBar = h('div', { class: 'dd-part dd-low', hidden: true }, this.#foldedTitle, this.#foldedCount, h('span', { class: 'dd-grow' }), this.#unfold);
  readonly #sheet = h('div', { class: 'dd-log-sheet' });
  readonly #body = h('div', { id: `dd-log-${(logs += 1)}`, class: 'dd-log-body', tabindex: 0, role: 'tabpanel', 'aria-label': __('Log lines') }, this.#sheet);
  readonly #whole = h('pre', { class: 'dd-log-whole', tabindex: 0, hidden: true, 'aria-label': __('Whole line') });

  constructor(
    private readonly root: HTMLElement,
    private readonly store: LogStore,
    private readonly place: LogViewState,
    private readonly onUnfold: () => void,
    private readonly picture: PictureSource,
  ) {
    root.classList.add('dd-log');
    root.append(this.#bar, this.#foldedBar, this.#body, this.#whole);
    this.#follow.append(this.#fresh);
    this.#input.value = place.query;
    this.#seen = store.arrived;
    this.#connect();
  }

  #connect(): void {
    this.#body.addEventListener('scroll', () => this.#scrolled());
    this.#input.addEventListener('input', () => this.#searchFor(this.#input.value));
    this.#input.addEventListener('keydown', (event) => this.#searchKey(event));
    this.root.addEventListener('keydown', (event) => this.#key(event));
    this.#body.addEventListener('keydown', (event) => this.#bodyKey(event));
    onClick(this.#follow, () => this.#setFollow(!this.place.follow));
    onClick(this.#unfold, () => this.#openAll());
    onClick(this.#both, () => this.#switch(this.place.rank, false));
    onClick(this.#stderr, () => this.#switch(this.place.rank, true));
    arrowKeys(this.#tabs, () => [...this.#tabs.querySelectorAll<HTMLElement>('[role=tab]')], (tab) => tab.click());
    onClick(this.#sheet, (event) => this.#clicked(event));
  }

  /** Set the number of ranks and the failed rank. */
  set(setting: Setting): void {
    this.#setting = setting;
    this.refresh();
  }

  /** The store has changed, or the view came into sight: draw what is seen now. */
  refresh(): void {
    const folded = this.#folded();
    this.store.pin(!this.place.follow && !folded);
    this.#drawBars(folded);
    this.#take(folded ? (this.#setting.failed?.rank ?? null) : this.place.rank, folded);
    this.#find();
    if (this.place.follow && !folded) this.#toEnd();
    this.#draw();
  }

  /** Take over what the store has; what is in sight stays where it is when rows come or go before it. */
  #take(rank: number | null, folded: boolean): void {
    const stderr = this.place.stderr && !folded;
    const lines = this.store.lines(rank, stderr);
    const { from, to, held } = lines;
    this.#lines = { from, to, held, at: (place) => lines.at(place) };
    this.#open = stderr ? [] : this.store.open(rank);
    this.#gap = !folded && this.store.whole && this.store.earlier ? from - 1 : null;
    const begin = folded ? Math.max(from, to + this.#open.length - FOLDED) : (this.#gap ?? from);
    const moved = this.#of === rank && this.#ofStderr === stderr && !folded ? this.#from - begin : 0;
    this.#from = begin;
    this.#of = rank;
    this.#ofStderr = stderr;
    this.#sheet.style.height = `${(to + this.#open.length - begin) * HEIGHT}px`;
    if (moved && !this.place.follow) this.#scrollTo(this.#body.scrollTop + moved * HEIGHT);
    if (stderr) this.#load();
  }

  /** Return the row at a place, null when there is none here. */
  #row(place: number): Row | null {
    const wire = place < this.#lines.to ? this.#lines.at(place) : this.#open[place - this.#lines.to];
    return wire ? fromWire(wire) : null;
  }

  get #end(): number {
    return this.#lines.to + this.#open.length;
  }

  /** Fetch older rows and draw them; repeat until the view is filled. */
  #load(beyond = false): void {
    if (!(beyond ? this.store.reachable : !this.store.whole)) return;
    const { earlier } = this.store;
    void this.store.load(beyond).then((more) => {
      if (more || this.store.earlier !== earlier) this.refresh();
    });
  }

  /** Put the view back to where it was scrolled to, after its front end drew it anew. */
  restore(): void {
    if (!this.place.follow) this.#scrollTo(this.place.scroll);
    this.refresh();
  }

  #folded(): boolean {
    return this.place.folded && this.#setting.failed !== null;
  }

  #openAll(): void {
    this.place.folded = false;
    this.place.rank = null;
    this.place.stderr = false;
    this.onUnfold();
    this.refresh();
  }

  // ---- bars ----

  #drawBars(folded: boolean): void {
    show(this.#bar, !folded);
    show(this.#foldedBar, folded);
    this.root.classList.toggle('dd-log-folded', folded);
    const rank = this.#setting.failed?.rank ?? null;
    setText(this.#foldedTitle, rank === null ? __('Last lines') : __('Last lines of rank %1', rank));
    setText(this.#foldedCount, _n('%2 line in all ranks', '%2 lines in all ranks', this.store.total, count(this.store.total)));
    this.#drawTabs();
    this.#drawStreams();
    const fresh = this.place.follow ? 0 : this.store.arrived - this.#seen;
    if (this.place.follow) this.#seen = this.store.arrived;
    setText(this.#fresh, fresh > 0 ? `${count(fresh)} new` : '');
    this.#follow.classList.toggle('dd-on', this.place.follow);
    assign(this.#follow, { 'aria-pressed': String(this.place.follow), title: this.place.follow ? __('Follow is on ( f )') : __('Follow the newest line ( f )') });
  }

  #drawTabs(): void {
    const world = this.#setting.world;
    fill(this.#tabs, String(world), () => (world > MAX_TABS ? [this.#tab(null), this.#rankList(world)] : this.#allTabs(world)));
    for (const tab of this.#tabs.querySelectorAll<HTMLElement>('[role=tab]')) {
      const rank = tab.dataset['rank'] ? Number(tab.dataset['rank']) : null;
      assign(tab, { 'aria-selected': String(rank === this.place.rank), tabindex: rank === this.place.rank ? 0 : -1 });
      const tag = tab.querySelector<HTMLElement>('.dd-tag');
      if (tag) this.#drawErrors(tag, rank);
    }
    const list = this.#tabs.querySelector('select');
    if (list) list.value = this.place.rank === null ? '' : String(this.place.rank);
  }

  #drawStreams(): void {
    const { rank, stderr } = this.place;
    const { errors } = this.store;
    const many = rank === null ? Object.values(errors).reduce((sum, one) => sum + one, 0) : (errors[rank] ?? 0);
    setText(this.#stderr, `stderr ${count(many)}`);
    for (const [button, on] of [[this.#both, !stderr], [this.#stderr, stderr]] as const) {
      button.classList.toggle('dd-on', on);
      assign(button, { 'aria-pressed': String(on) });
    }
  }

  #drawErrors(tag: HTMLElement, rank: number | null): void {
    const errors = rank === null ? 0 : (this.store.errors[rank] ?? 0);
    show(tag, errors > 0);
    setText(tag, count(errors));
    assign(tag, { title: _n('%2 line on stderr', '%2 lines on stderr', errors, count(errors)) });
  }

  #allTabs(world: number): HTMLElement[] {
    if (world === 1) return [this.#tab(null)];
    return [this.#tab(null), ...Array.from({ length: world }, (_, rank) => this.#tab(rank))];
  }

  #tab(rank: number | null): HTMLElement {
    const tag = h('span', { class: 'dd-tag dd-tag-warn dd-num', hidden: true });
    const swatch = rank === null ? null : h('i', { class: `dd-swatch ${rankClass(rank)}` });
    const word = rank === null ? __('All') : __('Rank %1', rank);
    const tab = h('button', { type: 'button', role: 'tab', 'data-rank': rank === null ? '' : rank, 'aria-controls': this.#body.id }, swatch, h('span', { 'data-word': word }, word), tag);
    return onClick(tab, () => this.#choose(rank));
  }

  #rankList(world: number): HTMLElement {
    const options = Array.from({ length: world }, (_, rank) => h('option', { value: rank }, __('Rank %1', rank)));
    const list = h('select', { class: 'dd-ranklist', 'aria-label': __('Rank') }, h('option', { value: '' }, __('Each rank')), ...options);
    list.addEventListener('change', () => this.#choose(list.value === '' ? null : Number(list.value)));
    return list;
  }

  #choose(rank: number | null): void {
    this.#switch(rank, this.place.stderr);
  }

  #switch(rank: number | null, stderr: boolean): void {
    this.place.rank = rank;
    this.place.stderr = stderr;
    this.#close();
    this.#current = -1;
    this.#search = null;
    if (!this.place.follow) this.#scrollTo(0);
    this.refresh();
  }

  // ---- follow ----

  #setFollow(on: boolean): void {
    this.place.follow = on;
    this.refresh();
  }

  #scrolled(): void {
    const at = this.#body.scrollTop;
    this.place.scroll = at;
    if (Math.abs(at - this.#expected) > 1 && this.#body.clientHeight > 0) {
      const atEnd = at + this.#body.clientHeight >= this.#body.scrollHeight - HEIGHT / 2;
      if (atEnd !== this.place.follow && !this.#folded()) {
        this.place.follow = atEnd;
        this.store.pin(!atEnd);
        this.#drawBars(this.#folded());
        if (atEnd) this.refresh();
      }
    }
    this.#expected = at;
    this.#draw();
  }

  #toEnd(): void {
    this.#scrollTo(this.#body.scrollHeight);
  }

  #scrollTo(top: number): void {
    this.#body.scrollTop = top;
    this.#expected = this.#body.scrollTop;
    this.place.scroll = this.#expected;
  }

  // ---- rows ----

  #draw(): void {
    const folded = this.#folded();
    const top = folded ? 0 : this.#body.scrollTop;
    const first = this.#from + Math.max(0, Math.floor(top / HEIGHT) - SPARE);
    const end = Math.min(this.#end, this.#from + Math.ceil((top + this.#body.clientHeight) / HEIGHT) + SPARE);
    const kept = new Map<string, HTMLElement>();
    for (let place = first; place < end; place += 1) {
      if (place === this.#gap) this.#drawGap(place, kept);
      else this.#drawRow(place, kept);
    }
    for (const [key, element] of this.#drawn) if (!kept.has(key)) element.remove();
    this.#drawn = kept;
    const few = folded ? this.#end - this.#from < FOLDED : this.#body.clientHeight > 0 && first <= this.#lines.held;
    if (few) this.#load();
    // Of all ranks there are always enough lines; those of one rank, or on stderr, may be far away.
    if (kept.has(GAP) && this.place.rank === null && !this.place.stderr) this.#load(true);
  }

  /** Show the number of lines before the loaded rows; they are fetched when this line comes into sight. */
  #drawGap(place: number, kept: Map<string, HTMLElement>): void {
    const earlier = this.store.earlier;
    const all = this.place.rank === null && !this.place.stderr;
    const words = all ? _n('… %2 line not shown here', '… %2 lines not shown here', earlier, count(earlier)) : __('… earlier lines not shown here');
    const element = this.#drawn.get(GAP) ?? onClick(h('button', { class: 'dd-ll-gap dd-num', type: 'button', title: __('Show earlier lines') }), () => this.#load(true));
    if (!element.isConnected) this.#sheet.append(element);
    setText(element, words);
    element.style.top = `${(place - this.#from) * HEIGHT + PADDING}px`;
    kept.set(GAP, element);
  }

  #drawRow(place: number, kept: Map<string, HTMLElement>): void {
    const row = this.#row(place);
    if (!row) return;
    const key = row.n >= 0 ? String(row.n) : `open-${row.rank ?? ''}-${row.stream}`;
    const looks = [row.text, row.styles.join(), row.redraws, row.lines.size, this.place.query, this.place.rank, place === this.#current, place === this.#selected, this.#setting.failed?.text].join('\u0000');
    let element = this.#drawn.get(key);
    if (element?.dataset['looks'] !== looks) {
      const fresh = this.#rowElement(row, place);
      fresh.dataset['looks'] = looks;
      if (element) element.replaceWith(fresh);
      else this.#sheet.append(fresh);
      element = fresh;
    }
    const top = `${(place - this.#from) * HEIGHT + PADDING}px`;
    if (element.style.top !== top) element.style.top = top;
    element.dataset['at'] = String(place);
    kept.set(key, element);
  }

  #rowElement(row: Row, place: number): HTMLElement {
    const error = row.stream === 'err' && !row.redraws;
    const bad = error && this.#isFailure(row);
    const classes = ['dd-ll', bad ? 'dd-ll-bad' : error ? 'dd-ll-err' : '', row.rank === null ? 'dd-ll-sys' : '', place === this.#selected ? 'dd-ll-open' : ''];
    return h(
      'div',
      { class: classes.filter(Boolean).join(' ') },
      h('span', { class: 'dd-t dd-num' }, clock(row.t)),
      this.#who(row),
      h('span', { class: 'dd-e' }, error ? 'err' : ''),
      h('span', { class: 'dd-x' }, h('span', { class: 'dd-text' }, ...written(row, this.place.query, place === this.#current)), this.#badge(row)),
    );
  }

  #isFailure(row: Row): boolean {
    const failed = this.#setting.failed;
    return Boolean(failed?.text) && row.rank === failed?.rank && row.text.trimStart().startsWith(failed?.text ?? '');
  }

  #who(row: Row): HTMLElement {
    if (row.rank === null) return h('span');
    const rank = this.place.rank ?? (this.#folded() ? (this.#setting.failed?.rank ?? null) : null);
    if (rank === null && row.lines.size === this.#setting.world && row.lines.size > 1) return h('span', { class: 'dd-rn' }, 'all');
    return h('span', { class: `dd-rn ${rankClass(rank ?? row.rank)}` }, String(rank ?? row.rank));
  }

  #badge(row: Row): HTMLElement | null {
    const words = [row.lines.size > 1 ? _n('×%1 rank', '×%1 ranks', row.lines.size) : '', row.redraws > 1 ? _n('%2 redraw', '%2 redraws', row.redraws, count(row.redraws)) : ''];
    const text = words.filter(Boolean).join(', ');
    return text ? h('span', { class: 'dd-badge' }, text) : null;
  }

  // ---- search ----

  #searchFor(query: string): void {
    this.place.query = query.trim() ? query : '';
    this.#current = -1;
    this.#seeking = this.place.query !== '';
    this.refresh();
  }

  #find(): void {
    const query = this.place.query;
    clearTimeout(this.#slice);
    this.store.searched = query !== '';
    if (!query) this.#search = null;
    else if (this.#search?.query !== query) this.#search = new LogSearch(query);
    this.#openMatches = query ? this.#open.flatMap((row, at) => (places(row[4], query).length ? [this.#lines.to + at] : [])) : [];
    show(this.#found, query !== '');
    this.#field.classList.toggle('dd-searching', query !== '');
    this.#goOn();
  }

  /** Search a slice of the log, then yield to the page before the next one. */
  #goOn(): void {
    if (!this.#search) return;
    const done = this.#search.step(this.#lines, SLICE);
    const current = this.#current;
    if (this.place.follow) this.#current = this.#matchAt(this.#many - 1);
    const at = this.#matchOf(this.#current);
    const searching = !done || this.store.reachable;
    const beyond = this.store.earlier > 0;
    setText(this.#found, `${at >= 0 ? count(at + 1) : 0} / ${count(this.#many)}${searching ? ' …' : beyond ? '+' : ''}`);
    assign(this.#found, { title: beyond ? __('Lines that are not shown here were not searched.') : '' });
    if (current !== this.#current) this.#draw();
    if (!done) this.#slice = setTimeout(() => this.#goOn(), 0);
    else this.#load(true);
    if (this.#seeking && this.#many) {
      this.#seeking = false;
      this.#goTo(this.#matchAt(this.#many - 1));
    }
  }

  /** Return the number of matches found so far. */
  get #many(): number {
    return (this.#search?.count ?? 0) + this.#openMatches.length;
  }

  /** The place of a match by its number in order of lines, -1 when there is none. */
  #matchAt(index: number): number {
    const stored = this.#search?.count ?? 0;
    return (index < stored ? this.#search?.match(index) : this.#openMatches[index - stored]) ?? -1;
  }

  #matchOf(place: number): number {
    if (place < this.#lines.to) return this.#search?.indexOf(place) ?? -1;
    const at = this.#openMatches.indexOf(place);
    return at < 0 ? -1 : at + (this.#search?.count ?? 0);
  }

  #searchKey(event: KeyboardEvent): void {
    if (event.key === 'Escape') this.#endSearch();
    else if (event.key === 'Enter') this.#step(event.shiftKey ? -1 : 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #endSearch(): void {
    this.#input.value = '';
    this.#searchFor('');
    this.#body.focus();
  }

  #step(by: number): void {
    const many = this.#many;
    if (!many) return;
    const at = this.#matchOf(this.#current);
    this.#goTo(this.#matchAt(at < 0 && by < 0 ? many - 1 : (at + by + many) % many));
  }

  /** Bring the match at a place into sight. Stepping through matches ends following, as scrolling does. */
  #goTo(place: number): void {
    if (place < 0) return;
    this.#current = place;
    const top = (place - this.#from) * HEIGHT;
    const inSight = top >= this.#body.scrollTop && top + HEIGHT <= this.#body.scrollTop + this.#body.clientHeight;
    if (!inSight) {
      this.place.follow = false;
      this.#scrollTo(top - this.#body.clientHeight / 2);
    } else if (place !== this.#matchAt(this.#many - 1)) this.place.follow = false;
    this.refresh();
  }

  // ---- keys and whole lines ----

  #key(event: KeyboardEvent): void {
    if (event.target === this.#input || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === '/') this.#input.focus();
    else if (event.key === 'f') this.#setFollow(!this.place.follow);
    else if (event.key === 'Escape') this.#close();
    else return;
    event.preventDefault();
  }

  #bodyKey(event: KeyboardEvent): void {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === 'End') this.#setFollow(true);
    else if (by !== undefined && this.#selected !== null) this.#moveSelection(by);
    else return;
    event.preventDefault();
  }

  #moveSelection(by: number): void {
    const place = (this.#selected ?? 0) + by;
    const row = this.#row(place);
    if (row) this.#show(row, place);
  }

  #clicked(event: MouseEvent): void {
    const element = (event.target as Element).closest<HTMLElement>('.dd-ll');
    const selection = window.getSelection();
    if (!element || (selection && !selection.isCollapsed)) return;
    const place = Number(element.dataset['at']);
    const row = this.#row(place);
    if (row && place !== this.#selected) this.#show(row, place);
    else this.#close();
  }

  /** Show the whole text of a row below the log, broken into lines. */
  #show(row: Row, place: number): void {
    this.#selected = place;
    const shown = pictureOf(row.text);
    if (shown) this.#showPicture(...shown);
    else this.#whole.replaceChildren(...written(row, '', false));
    show(this.#whole, true);
    const top = (place - this.#from) * HEIGHT;
    const bottom = this.#body.scrollTop + this.#body.clientHeight - this.#whole.offsetHeight;
    if (top < this.#body.scrollTop || top + 2 * HEIGHT > bottom) {
      this.place.follow = false;
      this.#scrollTo(Math.max(0, top - this.#body.clientHeight / 3));
    }
    this.refresh();
  }

  #showPicture(...shown: [number: number, width: number, height: number]): void {
    const image = pictureElement(...shown);
    this.#whole.replaceChildren(image);
    load(image, this.picture);
  }

  #close(): void {
    if (this.#selected === null) return;
    this.#selected = null;
    show(this.#whole, false);
    this.refresh();
  }
}

const rankClass = (rank: number): string => `dd-rank-${rank % 4}${rank % 8 > 3 ? ' dd-rank-dashed' : ''}`;

/** Return a row's text in its colours, with what is searched for marked. */
function written({ text, styles }: Row, query: string, current: boolean): Node[] {
  const found = places(text, query);
  const cuts = [...new Set([0, ...found.flat(), ...styles.flatMap(([from, to]) => [from, to]), text.length])].sort((a, b) => a - b);
  return cuts.slice(1).map((to, index) => {
    const from = cuts[index] ?? 0;
    const style = styles.find(([begin, end]) => begin <= from && to <= end)?.[2];
    const part = style ? styled(text.slice(from, to), style) : document.createTextNode(text.slice(from, to));
    const hit = found.some(([begin, end]) => begin <= from && to <= end);
    return hit ? h('mark', { class: current ? 'dd-cur' : '' }, part) : part;
  });
}

function styled(text: string, style: string): HTMLElement {
  return h('span', { class: style.split(' ').map((code) => `dd-sgr-${code}`).join(' ') }, text);
}
