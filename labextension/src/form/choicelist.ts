/** A button that requests the possible values of a field, and a list to select one from. */
import { assign, h, onClick, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import { showMessage } from '../ui/refusal';
import type { OptionValue } from '../api/schema';

/** Requests the choices of a field and receives the selected one. */
export interface Asker {
  ask(): Promise<OptionValue[]>;
  taken(choice: OptionValue): void;
}

/** Maximum number of rows; more would hide the form. */
const MOST = 40;

let serial = 0;

export class ChoiceList {
  readonly element: HTMLElement;
  readonly button: HTMLButtonElement;
  readonly #status = h('div', { class: 'dd-sub dd-s12', role: 'status', 'aria-live': 'polite' });
  readonly #list: HTMLElement;
  readonly #panel: HTMLElement;
  #choices: OptionValue[] = [];
  #request = 0;

  /** `typed` returns the field's current text, which filters a long list. */
  constructor(label: string, private readonly asker: Asker, private readonly typed: () => string, private readonly done: () => void) {
    const id = `dd-choices-${(serial += 1)}`;
    this.#list = h('div', { class: 'dd-choices', role: 'group', 'aria-label': __('Values of %1', label) });
    this.#panel = h('div', { id, hidden: true }, this.#status, this.#list);
    const text = h('span', {}, __('Choose'));
    this.button = h('button', { type: 'button', class: 'dd-btn dd-small dd-choose', 'aria-expanded': 'false', 'aria-controls': id, 'aria-label': __('Choose %1', label) }, text, icon('down', 12));
    onClick(this.button, () => (this.#panel.hidden ? void this.open() : this.close()));
    this.element = this.#panel;
    this.#panel.addEventListener('keydown', (event) => this.#key(event));
  }

  /** Request the choices and show them. */
  async open(): Promise<void> {
    const request = (this.#request += 1);
    this.#setOpen(true);
    this.#choices = [];
    this.#list.replaceChildren();
    this.#setStatus(__('Loading…'));
    try {
      const choices = await this.asker.ask();
      if (request !== this.#request) return;
      this.#choices = choices;
      this.narrow();
      this.#list.querySelector('button')?.focus();
    } catch (error) {
      if (request === this.#request) this.#setStatus(error);
    }
  }

  close(): void {
    this.#request += 1;
    this.#setOpen(false);
  }

  /** Show the choices that contain the typed text, or all if none does. */
  narrow(): void {
    if (this.#panel.hidden || !this.#choices.length) return this.#showEmpty();
    const query = this.typed().trim().toLowerCase();
    const matches = this.#choices.filter(({ value, label }) => `${value} ${label}`.toLowerCase().includes(query));
    const shown = matches.length ? matches : this.#choices;
    this.#list.replaceChildren(...shown.slice(0, MOST).map((choice) => this.#row(choice)));
    const more = shown.length - MOST;
    this.#setStatus(more > 0 ? _n('%1 more: type part of its name.', '%1 more: type part of the name.', more) : '');
  }

  #showEmpty(): void {
    if (!this.#panel.hidden) this.#setStatus(__('No options available.'));
  }

  #row(choice: OptionValue): HTMLElement {
    const { value, label, detail } = choice;
    const name = h('span', { class: 'dd-ell' }, label || value);
    const more = h('span', { class: 'dd-sub dd-s12 dd-ell' }, detail);
    return onClick(h('button', { type: 'button', class: 'dd-choice', 'data-value': value, title: [label, value, detail].filter(Boolean).join('\n') }, name, more), () => this.#take(choice));
  }

  #take(choice: OptionValue): void {
    this.close();
    this.asker.taken(choice);
    this.done();
  }

  #key(event: KeyboardEvent): void {
    if (event.key !== 'Escape') return;
    event.stopPropagation();
    this.close();
    this.button.focus();
  }

  #setOpen(shown: boolean): void {
    show(this.#panel, shown);
    assign(this.button, { 'aria-expanded': String(shown) });
  }

  #setStatus(what: unknown): void {
    showMessage(this.#status, what);
  }
}
