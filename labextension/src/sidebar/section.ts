/** A part of the sidebar under a heading that folds it. */
import { assign, h, onClick, setText, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';

let serial = 0;

export class Section {
  readonly element: HTMLElement;
  readonly #count = h('span', { class: 'dd-sub dd-num dd-fold-count' });
  readonly #toggle: HTMLButtonElement;
  readonly #body: HTMLElement;
  #open = true;

  constructor(name: string, title: string, body: HTMLElement, tools: HTMLElement[], private readonly toggled: (open: boolean) => void) {
    const id = `dd-fold-${(serial += 1)}`;
    this.#body = body;
    assign(body, { id });
    const chevron = h('span', { class: 'dd-chevron' }, icon('right', 12));
    const heading = h('span', {}, title);
    this.#toggle = h('button', { type: 'button', class: 'dd-fold-toggle dd-grow', 'aria-controls': id }, chevron, heading, ' ', this.#count);
    onClick(this.#toggle, () => this.#press());
    const head = h('div', { class: 'dd-fold-head dd-row', role: 'heading', 'aria-level': 2 }, this.#toggle, ...tools);
    this.element = h('section', { class: `dd-fold dd-fold-${name}`, 'aria-label': title }, head, body);
    this.open = true;
  }

  get open(): boolean {
    return this.#open;
  }

  set open(open: boolean) {
    this.#open = open;
    assign(this.#toggle, { 'aria-expanded': String(open) });
    assign(this.element, { 'data-open': String(open) });
    show(this.#body, open);
  }

  set count(count: number | null) {
    setText(this.#count, count === null ? '' : String(count));
  }

  /** Show the number of rows below the heading, and the total if rows are hidden. */
  counts(shown: number, all: number): void {
    setText(this.#count, shown === all ? String(all) : __('%1 of %2', shown, all));
  }

  #press(): void {
    this.open = !this.#open;
    this.toggled(this.#open);
  }
}
