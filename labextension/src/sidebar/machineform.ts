/** The form that makes the machines of a cluster; what they would cost is said before, and agreed to. */
import { h, onClick, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { InlineConfirm } from '../ui/inlineconfirm';
import { Refusal, say } from '../ui/refusal';
import { propertiesOf, SchemaField } from '../form/schemafields';
import { forecastWords } from './costtext';
import type { Choice, Machines } from './types';

export interface MachineFormActions {
  choices(field: string): Promise<Choice[]>;
  forecast(wanted: Record<string, unknown>): Promise<Machines>;
  create(wanted: Record<string, unknown>): Promise<unknown>;
  /** The form is done with. */
  closed(): void;
}

export class MachineForm {
  readonly element: HTMLFormElement;
  readonly #fields: SchemaField[];
  readonly #more: HTMLDetailsElement;
  readonly #error = h('div', { class: 'dd-s12 dd-ink-err', role: 'alert', hidden: true });
  readonly #question = h('div', {});
  readonly #submit = h('button', { type: 'submit', class: 'dd-btn dd-small dd-primary' }, __('Create'));

  constructor(cluster: string, wanted: unknown, private readonly actions: MachineFormActions) {
    const { properties, required } = propertiesOf(wanted);
    const first = (name: string): boolean => properties.some(([one, property]) => one === name && (property['x-first'] === true || required.has(one)));
    this.#fields = properties.map(([name, property]) => {
      const asker = property['x-asked'] ? { ask: () => actions.choices(name), taken: (choice: Choice) => this.#take(name, choice) } : null;
      return new SchemaField(name, property, required.has(name), true, asker);
    });
    const elements = (wantsFirst: boolean): HTMLElement[] => this.#fields.filter(({ name }) => first(name) === wantsFirst).map(({ element }) => element);
    const rest = elements(false);
    this.#more = h('details', { class: 'dd-more-fields', hidden: rest.length === 0 }, h('summary', { class: 'dd-summary dd-s12' }, icon('right', 12, 'dd-sub'), __('More options')), h('div', { class: 'dd-fields' }, ...rest));
    const close = onClick(h('button', { type: 'button', class: 'dd-btn dd-small' }, __('Close')), () => actions.closed());
    const buttons = h('div', { class: 'dd-row' }, this.#submit, close);
    this.element = h('form', { class: 'dd-machine-form', 'aria-label': __('Create the machines of %1', cluster), novalidate: true }, h('div', { class: 'dd-fields' }, ...elements(true)), this.#more, this.#error, this.#question, buttons);
    this.element.addEventListener('submit', (event) => {
      event.preventDefault();
      void this.#submitted();
    });
    this.element.addEventListener('keydown', (event) => {
      event.stopPropagation();
      if (event.key === 'Escape') actions.closed();
    });
  }

  focus(): void {
    this.#fields[0]?.focus();
  }

  #take(name: string, choice: Choice): void {
    for (const field of this.#fields) {
      if (field.name === name) field.text = choice.value;
      else if (field.name in choice.sets) field.text = String(choice.sets[field.name]);
    }
  }

  async #submitted(): Promise<void> {
    const wanted = this.#values();
    if (!wanted) return;
    this.#busy(true);
    this.#say('');
    try {
      const forecast = await this.actions.forecast(wanted);
      if (await this.#agreed(forecastWords(forecast))) {
        await this.actions.create(wanted);
        this.actions.closed();
      }
    } catch (error) {
      this.#refused(error);
    } finally {
      this.#busy(false);
    }
  }

  async #agreed(text: string): Promise<boolean> {
    const question = new InlineConfirm(text, __('Create'), __('Back'));
    this.#question.replaceChildren(question.element);
    show(this.#submit, false);
    question.focus();
    const yes = await question.answered;
    show(this.#submit, true);
    if (!yes) this.#submit.focus();
    return yes;
  }

  /** Return what was typed, or null when a field says what is wrong. */
  #values(): Record<string, unknown> | null {
    const found: Record<string, unknown> = {};
    let wrong: SchemaField | null = null;
    for (const field of this.#fields) {
      try {
        const value = field.value();
        if (value !== undefined) found[field.name] = value;
      } catch {
        wrong ??= field;
      }
    }
    if (wrong) this.#goTo(wrong);
    return wrong ? null : found;
  }

  #refused(error: unknown): void {
    const field = error instanceof Refusal ? this.#fields.find(({ name }) => name === error.field) : undefined;
    field?.fail(error);
    if (field) this.#goTo(field);
    this.#say(field ? '' : error);
  }

  #goTo(field: SchemaField): void {
    if (this.#more.contains(field.element)) this.#more.open = true;
    field.focus();
  }

  #busy(busy: boolean): void {
    this.#submit.disabled = busy;
  }

  #say(what: unknown): void {
    say(this.#error, what);
  }
}
