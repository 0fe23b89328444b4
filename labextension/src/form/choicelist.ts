/** What a field may be, as somebody says who has to be asked: a button that asks, and a list that a click takes from. */
import { assign, h, onClick, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import { say } from '../ui/refusal';
import type { Choice } from '../api/schema';

/** What a field with choices needs of its form. */
export interface Asker {
  ask(): Promise<Choice[]>;
  taken(choice: Choice): void;
}

/** More at once would hide the form. */
const MOST = 40;

let serial = 0;

export class ChoiceList {
  readonly element: HTMLElement;
  readonly button: HTMLButtonElement;
  readonly #status = h('div', { class: 'dd-sub dd-s12', role: 'status', 'aria-live': 'polite' });
  readonly #list: HTMLElement;
  readonly #panel: HTMLElement;
  #choices: Choice[] = [];
  #asked = 0;

  /** `typed` is what the field holds now: it narrows a long list. */
  constructor(label: string, private readonly asker: Asker, private readonly typed: () => string, private readonly done: () => void) {
    const id = `dd-choices-${(serial += 1)}`;
    this.#list = h('div', { class: 'dd-choices', role: 'group', 'aria-label': __('Values of %1', label) });
    this.#panel = h('div', { id, hidden: true }, this.#status, this.#list);
    const words = h('span', {}, __('Choose'));
    this.button = h('button', { type: 'button', class: 'dd-btn dd-small dd-choose', 'aria-expanded': 'false', 'aria-controls': id, 'aria-label': __('Choose %1', label) }, words, icon('down', 12));
    onClick(this.button, () => (this.#panel.hidden ? void this.open() : this.close()));
    this.element = this.#panel;
    this.#panel.addEventListener('keydown', (event) => this.#key(event));
  }

  /** Ask and show what is offered. */
  async open(): Promise<void> {
    const asked = (this.#asked += 1);
    this.#shown(true);
    this.#choices = [];
    this.#list.replaceChildren();
    this.#say(__('Loading…'));
    try {
      const found = await this.asker.ask();
      if (asked !== this.#asked) return;
      this.#choices = found;
      this.narrow();
      this.#list.querySelector('button')?.focus();
    } catch (error) {
      if (asked === this.#asked) this.#say(error);
    }
  }

  close(): void {
    this.#asked += 1;
    this.#shown(false);
  }

  /** Show those that hold what is typed; all of them when none does. */
  narrow(): void {
    if (this.#panel.hidden || !this.#choices.length) return this.#none();
    const word = this.typed().trim().toLowerCase();
    const fitting = this.#choices.filter(({ value, label }) => `${value} ${label}`.toLowerCase().includes(word));
    const shown = fitting.length ? fitting : this.#choices;
    this.#list.replaceChildren(...shown.slice(0, MOST).map((choice) => this.#row(choice)));
    const more = shown.length - MOST;
    this.#say(more > 0 ? _n('%1 more: type part of its name.', '%1 more: type part of the name.', more) : '');
  }

  #none(): void {
    if (!this.#panel.hidden) this.#say(__('No options available.'));
  }

  #row(choice: Choice): HTMLElement {
    const { value, label, detail } = choice;
    const name = h('span', { class: 'dd-ell' }, label || value);
    const more = h('span', { class: 'dd-sub dd-s12 dd-ell' }, detail);
    return onClick(h('button', { type: 'button', class: 'dd-choice', 'data-value': value, title: [label, value, detail].filter(Boolean).join('\n') }, name, more), () => this.#take(choice));
  }

  #take(choice: Choice): void {
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

  #shown(shown: boolean): void {
    show(this.#panel, shown);
    assign(this.button, { 'aria-expanded': String(shown) });
  }

  #say(what: unknown): void {
    say(this.#status, what);
  }
}
