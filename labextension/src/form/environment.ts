/** The environment variables of a job. Values of secrets are typed here and sent once; the kernel never shows them again. */
import { h, onClick } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { looksSecret } from '../ui/secretnames';
import { freshId, heading } from './controls';
import type { Part, Store, Variable } from './state';

export class Environment implements Part {
  readonly element: HTMLElement;
  readonly #list = h('div', { class: 'dd-variables' });
  #rows: Row[] = [];
  /** The names received last, and those sent without an answer yet, oldest first. */
  #known = '[]';
  #sent: string[] = [];

  constructor(private readonly store: Store) {
    const id = freshId('environment');
    const add = onClick(h('button', { type: 'button', class: 'dd-btn dd-small' }, icon('plus', 14), __('Add variable')), () => this.#add());
    this.element = h('div', { class: 'dd-labelled', role: 'group', 'aria-labelledby': id }, heading(__('Environment variables'), id), this.#list, add);
  }

  update(): void {
    const variables = this.store.get('environment');
    for (const row of this.#rows) row.mark(variables);
    const known = JSON.stringify(variables.map(({ name }) => name));
    if (known === this.#known) return;
    this.#known = known;
    // An answer to what was sent here changes no row: a user may be typing the next one.
    const answered = this.#sent.lastIndexOf(known) + 1;
    this.#sent.splice(0, answered || this.#sent.length);
    if (!answered) this.#rebuild(variables);
  }

  #named(): Row[] {
    return this.#rows.filter((row) => row.name);
  }

  #rebuild(variables: Variable[]): void {
    this.#rows = [];
    this.#list.replaceChildren();
    for (const variable of variables) this.#append(variable);
  }

  #append(variable: Variable): Row {
    const row = new Row(variable, () => this.#send(), () => this.#remove(row));
    this.#rows.push(row);
    this.#list.append(row.element);
    return row;
  }

  #add(): void {
    this.#append({ name: '', value: '', secret: false }).focus();
  }

  #remove(row: Row): void {
    this.#rows = this.#rows.filter((one) => one !== row);
    row.element.remove();
    this.#send();
  }

  #send(): void {
    const names = JSON.stringify(this.#named().map(({ name }) => name));
    if (names !== (this.#sent.at(-1) ?? this.#known)) this.#sent.push(names);
    this.store.send({ type: 'environment', entries: this.#named().map(({ name, value }) => ({ name, value })) });
  }
}

class Row {
  readonly element: HTMLElement;
  readonly #name = h('input', { type: 'text', class: 'dd-mono', placeholder: __('NAME'), 'aria-label': __('Name of the variable'), spellcheck: 'false', autocomplete: 'off' });
  readonly #value = h('input', { type: 'text', class: 'dd-mono', 'aria-label': __('Value of the variable'), spellcheck: 'false', autocomplete: 'off' });
  /** The kernel holds a value that is not known here, until another one is typed. */
  #kept: boolean;

  constructor(variable: Variable, changed: () => void, remove: () => void) {
    this.#kept = variable.value === null;
    this.#name.value = variable.name;
    this.#value.value = variable.value ?? '';
    this.#value.addEventListener('input', () => (this.#kept = false));
    // At once, so that a secret that is typed next is never to be read.
    this.#name.addEventListener('input', () => this.mark([]));
    for (const input of [this.#name, this.#value]) input.addEventListener('change', changed);
    const button = h('button', { type: 'button', class: 'dd-btn dd-quiet dd-icon', title: __('Remove this variable'), 'aria-label': __('Remove this variable') }, icon('close', 14));
    this.element = h('div', { class: 'dd-variable' },
      h('span', { class: 'dd-field' }, this.#name), h('span', { class: 'dd-sub', 'aria-hidden': 'true' }, '='), h('span', { class: 'dd-field' }, this.#value), onClick(button, remove));
    this.mark([variable]);
  }

  get name(): string {
    return this.#name.value.trim();
  }

  get value(): string | null {
    return this.#kept ? null : this.#value.value;
  }

  focus(): void {
    this.#name.focus();
  }

  /** Mask the typed value if the kernel reports the name as a secret. */
  mark(variables: Variable[]): void {
    const secret = variables.find(({ name }) => name === this.name)?.secret ?? looksSecret(this.name);
    this.#value.type = secret ? 'password' : 'text';
    this.#value.placeholder = this.#kept ? __('kept secret') : __('value');
  }
}
