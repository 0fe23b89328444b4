/** Search and filter above the list of jobs: `/` goes to the search, Escape empties it. */
import { arrowKeys, assign, h, onClick, setText, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import type { Filter } from './jobtext';

export class FilterBar {
  readonly element: HTMLElement;
  readonly #input = h('input', { type: 'search', placeholder: __('Search jobs'), 'aria-label': __('Search jobs'), autocomplete: 'off', spellcheck: 'false' });
  readonly #buttons = new Map<Filter, { button: HTMLButtonElement; count: HTMLElement }>();
  #filter: Filter = 'all';

  constructor(private readonly changed: () => void) {
    const field = h('label', { class: 'dd-field dd-grow' }, icon('search', 14, 'dd-sub'), this.#input);
    this.element = h('div', { class: 'dd-row dd-filterbar' }, field, this.#segments());
    this.#input.addEventListener('input', changed);
    this.#input.addEventListener('keydown', (event) => this.#key(event));
    this.#choose('all');
  }

  get filter(): Filter {
    return this.#filter;
  }

  /** The words searched for, in lower case. */
  get words(): string[] {
    return this.#input.value.toLowerCase().split(/\s+/).filter(Boolean);
  }

  focus(): void {
    this.#input.focus();
  }

  /** Show all jobs again. */
  reset(): void {
    this.#input.value = '';
    this.#choose('all');
    this.changed();
  }

  /** Show how many jobs are active, wait and have failed. */
  counts(active: number, queued: number, failed: number): void {
    for (const [name, many] of [['active', active], ['queued', queued], ['failed', failed]] as const) {
      const entry = this.#buttons.get(name);
      if (entry) setText(entry.count, many ? ` ${many}` : '');
    }
    // There is room for it where jobs wait.
    const waits = this.#buttons.get('queued');
    if (waits) show(waits.button, queued > 0 || this.#filter === 'queued');
  }

  #segments(): HTMLElement {
    const names: [Filter, string][] = [['all', __('All')], ['active', __('Active')], ['queued', __('Queued')], ['failed', __('Failed')]];
    for (const [name, word] of names) {
      const count = h('span', { class: 'dd-num dd-count' });
      const button = h('button', { type: 'button', role: 'radio', 'data-filter': name }, word, count);
      this.#buttons.set(name, { button, count });
      onClick(button, () => this.#chosen(name));
    }
    const buttons = [...this.#buttons.values()].map(({ button }) => button);
    const group = h('div', { class: 'dd-seg', role: 'radiogroup', 'aria-label': __('Show jobs') }, ...buttons);
    arrowKeys(group, () => buttons, (item) => item.click());
    return group;
  }

  #chosen(name: Filter): void {
    this.#choose(name);
    this.changed();
  }

  #choose(name: Filter): void {
    this.#filter = name;
    for (const [each, { button }] of this.#buttons) {
      button.classList.toggle('dd-on', each === name);
      assign(button, { 'aria-checked': String(each === name), tabindex: each === name ? 0 : -1 });
    }
  }

  #key(event: KeyboardEvent): void {
    if (event.key !== 'Escape' || !this.#input.value) return;
    event.stopPropagation();
    this.#input.value = '';
    this.changed();
  }
}
