/** Which VM sizes are shown: by words, the GPU's model, its memory, InfiniBand, and whether they can still be rented. */
import { h } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { TextField, checkbox } from './controls';
import type { VmSizeChoice } from './state';

export class SizeFilter {
  readonly words: TextField;
  /** The choices below the words. */
  readonly element: HTMLElement;
  readonly #model: HTMLSelectElement;
  readonly #memory: HTMLSelectElement;
  readonly #fabric: { element: HTMLElement; input: HTMLInputElement };
  readonly #retired: { element: HTMLElement; input: HTMLInputElement };
  #offered = '';

  constructor(private readonly changed: () => void) {
    this.words = new TextField({ type: 'search', placeholder: __('Filter'), 'aria-label': __('Filter sizes') }, () => undefined, icon('search', 14, 'dd-sub'));
    this.words.input.addEventListener('input', changed);
    this.#model = this.#select(__('GPU model'));
    this.#memory = this.#select(__('Memory of each GPU'));
    this.#fabric = checkbox(__('InfiniBand only'), changed);
    this.#retired = checkbox(__('Retired'), changed);
    this.element = h('div', { class: 'dd-vm-filter', role: 'group', 'aria-label': __('Filter sizes') }, this.#model, this.#memory, h('span', { class: 'dd-grow' }), this.#fabric.element, this.#retired.element);
  }

  /** Key of the current filter, to redraw only on a change. */
  get key(): string {
    return JSON.stringify([this.words.input.value, this.#model.value, this.#memory.value, this.retired, this.#fabric.input.checked]);
  }

  get retired(): boolean {
    return this.#retired.input.checked;
  }

  set retired(on: boolean) {
    this.#retired.input.checked = on;
  }

  /** Offer the models and amounts of memory that there are; what was chosen stays. */
  offer(sizes: readonly VmSizeChoice[]): void {
    const models = [...new Set(sizes.map(({ gpu }) => gpu))].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    const amounts = [...new Set(sizes.flatMap(({ memory_gib }) => memory_gib ?? []))].sort((a, b) => a - b);
    const key = JSON.stringify([models, amounts]);
    if (key === this.#offered) return;
    this.#offered = key;
    options(this.#model, __('Any GPU'), models.map((model) => [model, model]));
    options(this.#memory, __('Any memory'), amounts.map((amount) => [String(amount), __('%1 GB or more', amount)]));
  }

  /** Return whether a size is shown. */
  passes(size: VmSizeChoice): boolean {
    if (size.retired && !this.retired) return false;
    return this.fits(size);
  }

  /** Return whether a size, retired or not, matches the filter. An undocumented value matches no choice. */
  fits(size: VmSizeChoice): boolean {
    if (this.#fabric.input.checked && size.network !== 'InfiniBand') return false;
    if (this.#model.value && size.gpu !== this.#model.value) return false;
    if (this.#memory.value && (size.memory_gib ?? 0) < Number(this.#memory.value)) return false;
    const words = this.words.input.value.toLowerCase().replace('standard_', '').split(/\s+/);
    return words.every((word) => size.search_text.includes(word));
  }

  /** Reset every filter except that of retired sizes. */
  clear(): void {
    this.words.input.value = this.#model.value = this.#memory.value = '';
    this.#fabric.input.checked = false;
    this.#mark();
  }

  #select(label: string): HTMLSelectElement {
    const select = h('select', { class: 'dd-field dd-pick', 'aria-label': label });
    select.addEventListener('change', () => {
      this.#mark();
      this.changed();
    });
    return select;
  }

  /** A choice that hides sizes is easy to see. */
  #mark(): void {
    for (const select of [this.#model, this.#memory]) select.classList.toggle('dd-on', Boolean(select.value));
  }
}

function options(select: HTMLSelectElement, any: string, choices: [string, string][]): void {
  const chosen = select.value;
  select.replaceChildren(h('option', { value: '' }, any), ...choices.map(([value, text]) => h('option', { value }, text)));
  select.value = choices.some(([value]) => value === chosen) ? chosen : '';
}
