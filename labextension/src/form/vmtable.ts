/**
 * The sizes of the catalogue as a table with filters; one line where nothing is rented and none is chosen. A retired size
 * cannot be chosen, only replaced.
 */
import { fill, h, onClick, setText, show, whenAttached, type Child } from '../ui/dom';
import { __, _n } from '../ui/trans';
import { Fold, link, freshId, setLine } from './controls';
import { SizeFilter } from './sizefilter';
import type { Part, Store, VmSizeChoice } from './state';

export class VmTable implements Part {
  readonly element: HTMLElement;
  readonly #fold: Fold;
  readonly #group = freshId('vm');
  readonly #filter = new SizeFilter(() => this.update());
  readonly #body = h('tbody');
  readonly #frame: HTMLElement;
  readonly #caption = h('span', { role: 'status' });
  readonly #price = h('div', { class: 'dd-form-note dd-vm-price', hidden: true });
  readonly #clear: HTMLButtonElement;
  readonly #pages = h('div', { class: 'dd-vm-pages dd-sub', hidden: true });
  readonly #sources: HTMLButtonElement;
  #shownChoice: string | null = null;

  constructor(private readonly store: Store) {
    this.#clear = link(__('Clear choice'), () => store.set({ vm_size: '' }));
    this.#sources = link(__('sources'), () => this.#toggleSources(), { 'aria-expanded': 'false' });
    this.#frame = h('div', { class: 'dd-vm-frame', role: 'radiogroup', 'aria-label': __('VM series') }, h('table', { class: 'dd-vm' }, head(), this.#body));
    this.#filter.retired = store.get('choices').sizes.some(({ name, retired }) => retired && name === store.get('vm_size'));
    const open = link(__('Choose a VM size'), () => this.#choose(), { class: 'dd-link dd-s12 dd-nw dd-when-folded' });
    this.#fold = new Fold(__('VM series'), h('span', { class: 'dd-form-fold-action' }, open, h('span', { class: 'dd-when-open' }, this.#filter.words.element)),
      this.#filter.element,
      this.#frame,
      this.#price,
      h('div', { class: 'dd-form-note dd-vm-caption' }, h('span', {}, this.#caption, ' ', this.#sources), this.#clear),
      this.#pages,
    );
    this.element = this.#fold.element;
  }

  update(): void {
    const { sizes, catalogue_date, clusters } = this.store.get('choices');
    const chosen = this.store.get('vm_size');
    const cluster = clusters.find(({ name }) => name === this.store.get('compute_target'));
    const plan = cluster?.rents ? chosen : __('%1, for cost planning only', chosen);
    const none = cluster?.local ? __('not needed: this job runs here') : __('not needed: nothing is rented');
    this.#fold.update(chosen ? plan : cluster?.rents ? __('none chosen') : none, Boolean(chosen || cluster?.rents));
    this.#filter.offer(sizes);
    const found = sizes.filter((size) => this.#filter.passes(size));
    fill(this.#body, JSON.stringify([found.map(({ name }) => name), this.#filter.key]), () =>
      found.length ? found.map((size) => this.#row(size)) : [this.#nothing(sizes)]);
    this.#mark(chosen);
    setText(this.#caption, __('%1 of %2 sizes. Catalogue of %3,', found.length, sizes.length, catalogue_date));
    show(this.#clear, Boolean(chosen));
    const size = sizes.find(({ name }) => name === chosen);
    setLine(this.#price, size?.price ? __('Price: %1.', size.price) : '');
    this.#showPages(size, catalogue_date);
  }

  #choose(): void {
    this.#fold.choose(true);
    this.update();
    this.#body.querySelector<HTMLInputElement>('input:not(:disabled)')?.focus();
  }

  #row(size: VmSizeChoice): HTMLElement {
    const radio = h('input', { type: 'radio', class: 'dd-radio', name: this.#group, value: size.name, disabled: Boolean(size.retired), 'aria-label': this.#spoken(size) });
    radio.addEventListener('change', () => this.store.set({ vm_size: size.name }));
    const row = h('tr', { class: size.retired ? 'dd-retired' : '', title: size.notes || null },
      h('td', { class: 'dd-vm-radio' }, radio),
      h('td', { class: 'dd-vm-name dd-ell', title: size.name }, size.name),
      h('td', { class: 'dd-ell', title: size.gpus }, size.gpus),
      h('td', { class: 'dd-right dd-num' }, size.memory),
      ...(size.retired ? [this.#replacement(size)] : network(size)),
    );
    if (!size.retired) onClick(row, () => radio.checked || this.store.set({ vm_size: size.name }));
    return row;
  }

  #spoken(size: VmSizeChoice): string {
    if (size.retired) return __('%1, retired %2', size.name, size.retired);
    return __('%1, %2, %3 each, %4', size.name, size.gpus, size.memory, `${networkWord(size)} ${size.rate}`.trim());
  }

  #replacement(size: VmSizeChoice): HTMLElement {
    const tag = h('span', { class: 'dd-tag dd-tag-err' }, __('Retired %1', size.retired));
    if (!size.successor) return h('td', { colspan: 2 }, tag);
    const use = link(size.successor, () => this.#replace(size), { title: size.successor_reason, 'aria-label': __('Use %1 instead of %2', size.successor, size.name) });
    return h('td', { colspan: 2 }, h('span', { class: 'dd-row dd-replacement' }, tag, h('span', { class: 'dd-nw' }, __('use'), ' ', use)));
  }

  #replace(size: VmSizeChoice): void {
    this.#filter.clear();
    this.store.set({ vm_size: size.successor });
    this.update();
    this.#frame.querySelector<HTMLInputElement>('input:checked')?.focus();
  }

  /** Return the row for no match; it offers retired sizes if those match. */
  #nothing(sizes: VmSizeChoice[]): HTMLElement {
    const hidden = this.#filter.retired ? [] : sizes.filter((size) => size.retired && this.#filter.fits(size));
    const retired: Child[] = hidden.length
      ? [' ', _n('%1 retired size does:', '%1 retired sizes do:', hidden.length), ' ', link(__('show'), () => this.#showRetired())]
      : [];
    return h('tr', {}, h('td', { colspan: 6, class: 'dd-sub dd-vm-none' }, __('No size matches.'), ...retired));
  }

  #showRetired(): void {
    this.#filter.retired = true;
    this.update();
  }

  #mark(chosen: string): void {
    let marked: HTMLElement | undefined;
    for (const radio of this.#body.querySelectorAll<HTMLInputElement>('input')) {
      radio.checked = radio.value === chosen;
      const row = radio.closest('tr');
      row?.classList.toggle('dd-chosen', radio.checked);
      if (radio.checked && row) marked = row;
    }
    const found = marked;
    if (found && this.#shownChoice !== chosen) whenAttached(this.#frame, () => reveal(this.#frame, found));
    this.#shownChoice = chosen;
  }

  #toggleSources(): void {
    this.#pages.hidden = !this.#pages.hidden;
    this.#sources.setAttribute('aria-expanded', String(!this.#pages.hidden));
  }

  #showPages(size: VmSizeChoice | undefined, date: string): void {
    fill(this.#pages, size?.name ?? '', () => size
      ? [h('div', {}, __('Sources of %1:', size.name)), h('ul', {}, ...size.sources.map((page) => h('li', {}, page))), size.notes && h('div', {}, __('Notes: %1.', size.notes))]
      : [__("Microsoft's pages on GPU sizes and their retirement, last updated %1. Choose a size to see its sources. Values that no page states are left blank.", date)]);
  }
}

function head(): HTMLElement {
  const columns: [string, string][] = [['', 'dd-vm-radio'], [__('Size'), ''], [__('GPUs'), 'dd-vm-gpus'], [__('Memory each'), 'dd-vm-memory dd-right'], [__('Between nodes'), 'dd-vm-between'], ['', 'dd-vm-rate']];
  return h('thead', {}, h('tr', {}, ...columns.map(([text, name]) => h('th', { class: name, scope: 'col' }, text))));
}

/** Return the name of the network between nodes. */
function networkWord(size: VmSizeChoice): string {
  return size.network === 'not stated' ? __('unknown') : size.network;
}

function network(size: VmSizeChoice): HTMLElement[] {
  const title = size.network === 'not stated' ? __('InfiniBand is not documented for %1. Its Ethernet: %2.', size.name, size.rate || __('not documented')) : null;
  const what = size.network === 'InfiniBand' ? h('span', { class: 'dd-tag dd-tag-ok' }, 'InfiniBand') : h('span', { class: 'dd-sub' }, networkWord(size));
  return [h('td', { title }, what), h('td', { class: 'dd-sub dd-num dd-ell', title }, size.rate)];
}

/** Scroll the frame, and only the frame, so that the row can be seen. */
function reveal(frame: HTMLElement, row: HTMLElement): void {
  const below = row.offsetTop + row.offsetHeight - frame.clientHeight;
  const headHeight = frame.querySelector('thead')?.offsetHeight ?? 0;
  if (row.offsetTop - headHeight < frame.scrollTop) frame.scrollTop = row.offsetTop - headHeight;
  else if (below > frame.scrollTop) frame.scrollTop = below + row.offsetHeight;
}
