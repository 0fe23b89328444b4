/** The form that adds a cluster: its name, its kind, and that kind's options; errors are shown beside their field. */
import type { Asker } from './choicelist';
import { h, onClick, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { explained, Refusal, showMessage } from '../ui/refusal';
import type { OptionValue, Plugin } from '../api/schema';
import { fieldId, propertiesOf, SchemaField } from './schemafields';

const NAME_PROPERTY = { type: 'string', title: '', pattern: '^[A-Za-z0-9][A-Za-z0-9._-]*$' };

/** What gives clusters a name and takes it away; a promise is rejected with a Refusal. */
export interface ClusterActions {
  /** The kinds of clusters with their options. */
  kinds(): Promise<Plugin[]>;
  /** What an option may be, where these are filled in so far; it may take seconds. */
  choices(kind: string, option: string, options: Record<string, unknown>): Promise<OptionValue[]>;
  add(name: string, kind: string, options: Record<string, unknown>): Promise<unknown>;
  remove(name: string): Promise<unknown>;
}

export interface FormActions extends Pick<ClusterActions, 'kinds' | 'choices' | 'add'> {
  /** The form is done with: a cluster got the name `added`, "" when none did. */
  closed(added: string): void;
}

export class ClusterForm {
  readonly element: HTMLElement;
  readonly #name = new SchemaField('name', { ...NAME_PROPERTY, title: __('Name') }, true);
  readonly #kind = h('select', { class: 'dd-input', id: fieldId() });
  readonly #problem = h('div', { class: 'dd-s12 dd-ink-warn', hidden: true });
  readonly #options = h('div', {});
  readonly #error = h('div', { class: 'dd-s12 dd-ink-err', role: 'alert', hidden: true });
  readonly #submit = h('button', { type: 'submit', class: 'dd-btn dd-primary' }, __('Add'));
  #plugins: Plugin[] = [];
  #fields: SchemaField[] = [];
  #more: HTMLDetailsElement | null = null;

  constructor(private readonly actions: FormActions) {
    const kind = h('div', { class: 'dd-schema-field' }, h('label', { for: this.#kind.id, class: 'dd-s12' }, __('Kind')), this.#kind);
    const cancel = onClick(h('button', { type: 'button', class: 'dd-btn' }, __('Close')), () => actions.closed(''));
    const buttons = h('div', { class: 'dd-row' }, this.#submit, cancel);
    const parts = [h('div', { class: 'dd-fields' }, this.#name.element, kind), this.#problem, this.#options, this.#error, buttons];
    const form = h('form', { class: 'dd-cluster-form', 'aria-label': __('Add cluster'), novalidate: true }, ...parts);
    form.addEventListener('submit', (event) => this.#submitted(event));
    form.addEventListener('keydown', (event) => this.#key(event));
    this.#kind.addEventListener('change', () => this.#draw());
    this.element = form;
  }

  /** Request the types of clusters and focus the name. */
  async open(): Promise<void> {
    this.#name.focus();
    try {
      this.#plugins = worthFirst(await this.actions.kinds());
      this.#kind.replaceChildren(...this.#plugins.map(({ name, title }) => h('option', { value: name }, title)));
      this.#draw();
    } catch (error) {
      this.#refused(error);
    }
  }

  get #plugin(): Plugin | undefined {
    return this.#plugins.find(({ name }) => name === this.#kind.value);
  }

  #draw(): void {
    const plugin = this.#plugin;
    const { properties, required } = propertiesOf(plugin?.options);
    const firstOnes = new Set(properties.filter(([name, property]) => property['x-first'] || required.has(name)).map(([name]) => name));
    this.#fields = properties.map(([name, property]) => new SchemaField(name, property, required.has(name), firstOnes.size > 0, property['x-asked'] ? this.#asker(name) : null));
    const open = this.#fields.filter(({ name }) => !firstOnes.size || firstOnes.has(name));
    const rest = this.#fields.filter((field) => !open.includes(field));
    const none = h('div', { class: 'dd-sub dd-s12' }, __('This cluster type has no options.'));
    const summary = h('summary', { class: 'dd-summary dd-s12' }, icon('right', 12, 'dd-sub'), __('More options'));
    this.#more = h('details', { class: 'dd-more-fields', hidden: rest.length === 0 }, summary, h('div', { class: 'dd-fields' }, ...rest.map(({ element }) => element)));
    this.#options.replaceChildren(h('div', { class: 'dd-fields' }, ...(open.length ? open.map(({ element }) => element) : [none])), this.#more);
    this.#problem.replaceChildren(...explained(plugin?.problem ?? '', plugin?.remedy, plugin?.code).filter((part) => part instanceof Node || typeof part === 'string'));
    show(this.#problem, Boolean(plugin?.problem));
    this.#showMessage('');
  }

  /** Return the source of the choices of an option. */
  #asker(name: string): Asker {
    const filled = (): Record<string, string> => Object.fromEntries(this.#fields.filter(({ typed }) => typed.trim()).map((field) => [field.name, field.typed.trim()]));
    return { ask: () => this.actions.choices(this.#kind.value, name, filled()), taken: (choice) => this.#take(name, choice) };
  }

  /** Put a choice into its field, and what comes with it into theirs. */
  #take(name: string, { value, sets }: OptionValue): void {
    const values: Record<string, unknown> = { ...sets, [name]: value };
    for (const field of this.#fields) if (field.name in values) field.text = String(values[field.name]);
  }

  #key(event: KeyboardEvent): void {
    event.stopPropagation();
    if (event.key === 'Escape') this.actions.closed('');
  }

  #submitted(event: Event): void {
    event.preventDefault();
    const values = this.#values();
    if (values) void this.#add(values.name, values.options);
  }

  /** Return the typed values, or null if a field shows an error; the first such field gets the focus. */
  #values(): { name: string; options: Record<string, unknown> } | null {
    const found: [string, unknown][] = [];
    let wrong: SchemaField | null = null;
    for (const field of [this.#name, ...this.#fields]) {
      try {
        found.push([field.name, field.value()]);
      } catch {
        wrong ??= field;
      }
    }
    if (wrong) {
      this.#goTo(wrong);
      return null;
    }
    const [[, name] = ['', ''], ...options] = found;
    return { name: String(name), options: Object.fromEntries(options.filter(([, value]) => value !== undefined)) };
  }

  async #add(name: string, options: Record<string, unknown>): Promise<void> {
    this.#submit.disabled = true;
    this.#showMessage('');
    try {
      await this.actions.add(name, this.#kind.value, options);
      this.actions.closed(name);
    } catch (error) {
      this.#refused(error);
    } finally {
      this.#submit.disabled = false;
    }
  }

  /** Show a refusal beside the field that it names, else at the foot. */
  #refused(error: unknown): void {
    const field = error instanceof Refusal ? error.field : '';
    const at = [this.#name, ...this.#fields].find(({ name }) => name === field || field.endsWith(`.${name}`));
    at?.fail(error);
    if (at) this.#goTo(at);
    this.#showMessage(at ? '' : error);
  }

  /** Put the focus on a field, which may be folded away. */
  #goTo(field: SchemaField): void {
    if (this.#more?.contains(field.element)) this.#more.open = true;
    field.focus();
  }

  #showMessage(what: unknown): void {
    showMessage(this.#error, what);
  }
}

/** Return the kinds with those first that can be used and have options to give: a name alone is of little use. */
function worthFirst(plugins: Plugin[]): Plugin[] {
  const rank = ({ problem, options }: Plugin): number => (problem ? 2 : propertiesOf(options).properties.length ? 0 : 1);
  return [...plugins].sort((a, b) => rank(a) - rank(b) || Number(b.name === 'ssh') - Number(a.name === 'ssh'));
}
