/** Small controls of the form: sections, steppers, check boxes, rows of choices, selects. */
import { arrowKeys, assign, fill, h, onClick, setText, type Child } from '../ui/dom';
import { unquoted } from '../ui/format';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import type { Store } from './state';

let serial = 0;

/** Return an id that no other element of the page has. */
export const freshId = (what: string): string => `dd-${what}-${(serial += 1)}`;

/** Return a heading of a part of the form. */
export const heading = (text: string, id = ''): HTMLElement =>
  h('h3', { class: 'dd-form-heading', id: id || null }, text);

/** Return a link-like button. */
export function link(text: string, action: () => void, attributes: Record<string, string> = {}): HTMLButtonElement {
  return onClick(h('button', { type: 'button', class: 'dd-link', ...attributes }, text), action);
}

/** Return a box to tick with its words. */
export function checkbox(text: string, changed: (on: boolean) => void): { element: HTMLElement; input: HTMLInputElement } {
  const input = h('input', { type: 'checkbox', class: 'dd-check' });
  input.addEventListener('change', () => changed(input.checked));
  return { element: h('label', { class: 'dd-row dd-check-label' }, input, text), input };
}

/** A part of the form that is one line until it is opened: its title, what it holds in words, and perhaps one action. */
export class Fold {
  readonly element: HTMLElement;
  readonly #button: HTMLButtonElement;
  readonly #body: HTMLElement;
  readonly #summary = h('span', { class: 'dd-sub dd-s12 dd-ell' });
  /** Whether it was opened or closed: then it stays so until a user changes it. */
  #settled = false;

  constructor(title: string, action: HTMLElement | null, ...inside: Child[]) {
    const id = freshId('fold');
    const words = h('span', { class: 'dd-nw dd-b' }, title);
    this.#button = onClick(h('button', { type: 'button', class: 'dd-form-fold-title', 'aria-expanded': 'false', 'aria-controls': id }, icon('right', 12, 'dd-sub'), words, this.#summary), () => this.choose(!this.open));
    this.#body = h('div', { class: 'dd-form-fold-body', id, hidden: true }, ...inside);
    this.element = h('section', { class: 'dd-form-part dd-form-fold' }, h('div', { class: 'dd-form-fold-head' }, this.#button, action), this.#body);
  }

  get open(): boolean {
    return !this.#body.hidden;
  }

  /** Open or close it, as a user wants it. */
  choose(open: boolean): void {
    this.#settled = true;
    this.#body.hidden = !open;
    this.#button.setAttribute('aria-expanded', String(open));
  }

  /** Set the summary, and open the section if its content must be visible or has an error. It never closes by itself. */
  update(summary: string, open: boolean, wrong = false): void {
    setText(this.#summary, summary);
    if (wrong || (open && !this.#settled)) this.choose(true);
  }
}

/** A number with a button on either side. */
export class Stepper {
  readonly element: HTMLElement;
  readonly #input: HTMLInputElement;
  readonly #less: HTMLButtonElement;
  readonly #changed: (value: number) => void;
  #value = 1;
  /** The field holds text that was not taken over yet. */
  #typing = false;

  constructor(titles: { less: string; more: string }, labelId: string, changed: (value: number) => void, private readonly most = 10_000) {
    this.#changed = changed;
    this.#input = h('input', { type: 'text', inputmode: 'numeric', role: 'spinbutton', 'aria-labelledby': labelId, 'aria-valuemin': 1, 'aria-valuemax': most });
    this.#less = this.#button('minus', titles.less, -1);
    this.element = h('div', { class: 'dd-stepper' }, this.#less, this.#input, this.#button('plus', titles.more, 1));
    this.#input.addEventListener('input', () => (this.#typing = true));
    // Not at `change`: it stays away when a text ends as it began.
    this.#input.addEventListener('blur', () => this.#typed());
    this.#input.addEventListener('keydown', (event) => this.#key(event));
    this.#input.addEventListener('focus', () => this.#input.select());
  }

  /** Show a value; a field that is being typed in is left alone. */
  show(value: number): void {
    this.#value = value;
    this.#less.disabled = value <= 1;
    this.#input.setAttribute('aria-valuenow', String(value));
    if (!this.#typing) this.#input.value = String(value);
  }

  #button(name: string, title: string, step: number): HTMLButtonElement {
    const button = h('button', { type: 'button', title, 'aria-label': title, tabindex: -1 }, icon(name, 14));
    return onClick(button, () => this.#set(this.#value + step));
  }

  #key(event: KeyboardEvent): void {
    if (event.key === 'Enter') this.#typed();
    const step = { ArrowUp: 1, ArrowDown: -1, PageUp: 8, PageDown: -8 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.#set(this.#value + step);
  }

  #typed(): void {
    if (!this.#typing) return;
    const value = Number.parseInt(this.#input.value, 10);
    this.#set(Number.isFinite(value) ? value : this.#value);
  }

  #set(value: number): void {
    this.#typing = false;
    const kept = Math.min(this.most, Math.max(1, value));
    if (kept !== this.#value) this.#changed(kept);
    this.show(kept);
  }
}

export interface Choice {
  value: string;
  text: string;
  /** Why it cannot be chosen, "" when it can. */
  reason: string;
  /** It can be chosen in spite of that. */
  anyway?: boolean;
}

/** A row of choices of which one is on; the arrow keys move among those that can be chosen. */
export class Segments {
  readonly element: HTMLElement;
  readonly #buttons = new Map<string, HTMLButtonElement>();

  constructor(labelId: string, choices: Choice[], changed: (value: string) => void) {
    for (const choice of choices) this.#buttons.set(choice.value, segment(choice, changed));
    this.element = h('div', { class: 'dd-seg dd-seg-form', role: 'radiogroup', 'aria-labelledby': labelId }, ...this.#buttons.values());
    const usable = (): HTMLElement[] => [...this.#buttons.values()].filter((button) => !button.disabled);
    arrowKeys(this.element, usable, (item) => item.click());
  }

  /** Let all be chosen but these, which have a reason against them. */
  allow(reasons: ReadonlyMap<string, string>): void {
    for (const [name, button] of this.#buttons) assign(button, { disabled: reasons.has(name), title: unquoted(reasons.get(name) ?? '') || null });
  }

  show(value: string): void {
    const known = this.#buttons.get(value);
    const first = [...this.#buttons.values()].find((button) => !button.disabled);
    for (const [name, button] of this.#buttons) {
      button.classList.toggle('dd-on', name === value);
      assign(button, { 'aria-checked': String(name === value), tabindex: button === (known && !known.disabled ? known : first) ? 0 : -1 });
    }
  }
}

function segment(choice: Choice, changed: (value: string) => void): HTMLButtonElement {
  const attributes = { type: 'button', role: 'radio', disabled: Boolean(choice.reason), title: unquoted(choice.reason) || null };
  return onClick(h('button', attributes, choice.text), () => changed(choice.value));
}

/** A select in a frame that shows its choice in two tones: the value and, greyed, more about it. */
export class Select {
  readonly element: HTMLElement;
  readonly #select: HTMLSelectElement;
  readonly #text = h('span', { class: 'dd-select-text' });
  readonly #more = h('span', { class: 'dd-sub dd-ell dd-grow' });
  #choices: (Choice & { more?: string })[] = [];

  /** `opened` is called before the choices are shown. */
  constructor(labelId: string, changed: (value: string) => void, before: Child = null, opened?: () => void) {
    this.#select = h('select', { 'aria-labelledby': labelId });
    this.#select.addEventListener('change', () => changed(this.#select.value));
    if (opened) this.#select.addEventListener('focus', opened);
    const shown = h('span', { class: 'dd-row dd-grow', 'aria-hidden': 'true' }, before, this.#text, this.#more, icon('down', 12, 'dd-sub'));
    this.element = h('div', { class: 'dd-field dd-select' }, shown, this.#select);
  }

  /** Offer these choices; nothing is rebuilt while they stay the same. */
  offer(choices: (Choice & { more?: string })[]): void {
    this.#choices = choices;
    const key = JSON.stringify(choices);
    if (this.#select.dataset['key'] === key) return;
    this.#select.dataset['key'] = key;
    this.#select.replaceChildren(
      ...choices.map(({ value, text, reason, anyway }) => h('option', { value, disabled: Boolean(reason) && !anyway }, reason ? __('%1 (%2)', text, unquoted(reason)) : text)),
    );
  }

  focus(): void {
    this.#select.focus();
  }

  show(value: string): void {
    if (this.#select.value !== value) this.#select.value = value;
    const choice = this.#choices.find((one) => one.value === value);
    this.#text.classList.toggle('dd-b', Boolean(choice?.more));
    setText(this.#text, choice?.text ?? value);
    setText(this.#more, choice?.more ?? '');
  }
}

/** A line of text to type in; it reports when the user leaves it or presses Enter. */
export class TextField {
  readonly element: HTMLElement;
  readonly input: HTMLInputElement;

  constructor(attributes: Record<string, string>, changed: (value: string) => void, before: Child = null) {
    this.input = h('input', { type: 'text', spellcheck: 'false', autocomplete: 'off', ...attributes });
    this.input.addEventListener('change', () => changed(this.input.value));
    this.element = h('div', { class: 'dd-field' }, before, this.input);
  }

  show(value: string): void {
    if (document.activeElement !== this.input && this.input.value !== value) this.input.value = value;
  }
}

/** Return a labelled part: its heading, a control, and an optional line below. */
export function labelled(text: string, id: string, control: HTMLElement, ...below: Child[]): HTMLElement {
  return h('div', { class: 'dd-labelled' }, heading(text, id), control, ...below);
}

/** What is wrong with a field, shown beside it. */
export class Problem {
  readonly element = h('div', { class: 'dd-form-note dd-ink-err', role: 'alert', hidden: true });

  constructor(private readonly store: Store, private readonly fields: string[]) {}

  /** Show the first problem of these fields; return whether there is one. */
  update(): boolean {
    const problems = this.store.get('problems');
    const text = this.fields.map((name) => problems[name]).find(Boolean) ?? '';
    fill(this.element, text, () => [text]);
    this.element.hidden = !text;
    return Boolean(text);
  }
}

/** Set the text of a line and hide it when there is none. */
export function setLine(element: HTMLElement, text: string): void {
  setText(element, text);
  element.hidden = !text;
}
