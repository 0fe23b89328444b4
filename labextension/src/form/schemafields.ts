/** A form field for each option of a JSON schema: what is typed goes in, a value of the right kind comes out. */
import { ChoiceList, type Asker } from './choicelist';
import { assign, h, onClick } from '../ui/dom';
import { showMessage } from '../ui/refusal';
import { __ } from '../ui/trans';

/** The part of a property's JSON schema that determines its field. */
export interface Property {
  type?: string | string[];
  enum?: unknown[];
  anyOf?: Property[];
  items?: Property;
  title?: string;
  description?: string;
  default?: unknown;
  minimum?: number;
  maximum?: number;
  pattern?: string;
  /** Values worth offering; a click takes one, or adds it to a list of words. */
  examples?: unknown[];
  /** It is shown before the others, which are folded. */
  'x-first'?: boolean;
  /** Its possible values can be requested. */
  'x-asked'?: boolean;
}

export type Kind = 'flag' | 'choice' | 'integer' | 'number' | 'list' | 'pairs' | 'text';

/** Several bundles with this module can be on one page. */
const PAGE = Math.random().toString(36).slice(2, 8);
let serial = 0;
/** More suggestions would hide the form. */
const OFFERS = 24;

/** Return an id that no other element of the page has. */
export const fieldId = (): string => `dd-field-${PAGE}-${(serial += 1)}`;

/** Return the properties of an object's schema, and which of them must be given. */
export function propertiesOf(schema: unknown): { properties: [string, Property][]; required: Set<string> } {
  const { properties, required } = (schema ?? {}) as { properties?: Record<string, Property>; required?: string[] };
  return { properties: Object.entries(properties ?? {}), required: new Set(required ?? []) };
}

/** Return the alternatives of a schema without null, which means "not set". */
function alternatives(property: Property): Property[] {
  return (property.anyOf ?? [property]).filter(({ type }) => type !== 'null');
}

/** Return the kind of field of a property. */
export function kindOf(property: Property): Kind {
  const of = alternatives(property);
  if (of.some((one) => one.enum)) return 'choice';
  const types = new Set(of.flatMap(({ type }) => type ?? []).filter((type) => type !== 'null'));
  if (types.has('boolean') && types.size === 1) return 'flag';
  if (types.has('string')) return 'text';
  if (types.has('number')) return 'number';
  if (types.has('integer')) return 'integer';
  if (types.has('array')) return 'list';
  return types.has('object') ? 'pairs' : 'text';
}

/** Return the value that a text means; undefined when nothing was typed. Throws a sentence when it means none. */
export function parse(text: string, kind: Kind, property: Property): unknown {
  const bare = text.trim();
  if (!bare) return undefined;
  if (kind === 'integer' || kind === 'number') return parseNumber(bare, kind, property);
  if (kind === 'list') return bare.split(/[,\n]/).map((part) => part.trim()).filter(Boolean);
  if (kind === 'pairs') return parsePairs(bare);
  const pattern = alternatives(property).find((one) => one.pattern)?.pattern;
  if (pattern && !new RegExp(pattern).test(bare)) throw new Error(__('This must have the form %1.', pattern));
  return bare;
}

function parseNumber(text: string, kind: Kind, property: Property): number {
  const value = Number(text);
  if (!Number.isFinite(value)) throw new Error(__('Enter a number.'));
  if (kind === 'integer' && !Number.isInteger(value)) throw new Error(__('Enter an integer.'));
  const [limits = {}] = alternatives(property);
  if (limits.minimum !== undefined && value < limits.minimum) throw new Error(__('Enter %1 or more.', limits.minimum));
  if (limits.maximum !== undefined && value > limits.maximum) throw new Error(__('Enter %1 or less.', limits.maximum));
  return value;
}

function parsePairs(text: string): Record<string, string> {
  const pairs = text.split('\n').filter((line) => line.trim()).map((line) => {
    const at = line.indexOf('=');
    if (at < 1) throw new Error(__('Enter NAME=VALUE, one per line.'));
    return [line.slice(0, at).trim(), line.slice(at + 1)] as const;
  });
  return Object.fromEntries(pairs);
}

/** Return a value as it is typed. */
export function written(value: unknown, kind: Kind): string {
  if (value === null || value === undefined) return '';
  if (kind === 'list' && Array.isArray(value)) return value.join(', ');
  if (kind === 'pairs') return Object.entries(value as Record<string, unknown>).map(([name, each]) => `${name}=${String(each)}`).join('\n');
  return String(value);
}

type Control = HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement;

/** One field with its label, its help, and the place for what is wrong with it. */
export class SchemaField {
  readonly element: HTMLElement;
  readonly #kind: Kind;
  readonly #control: Control;
  readonly #error: HTMLElement;

  /** `bare`: what need not be given is plain without a word; `asker` knows what the value may be. */
  constructor(readonly name: string, private readonly property: Property, private readonly required: boolean, bare = false, asker: Asker | null = null) {
    const id = fieldId();
    this.#kind = kindOf(property);
    this.#control = makeControl(this.#kind, property, required);
    this.#error = h('div', { class: 'dd-field-error dd-ink-err dd-s12', id: `${id}-error`, hidden: true });
    assign(this.#control, { id, 'aria-describedby': property.description ? `${id}-help` : null, 'aria-required': required ? 'true' : null });
    const label = h('label', { for: id, class: 'dd-s12' }, `${property.title ?? readable(name)}${required || bare ? '' : ` (${__('optional')})`}`);
    const help = property.description ? h('div', { class: 'dd-sub dd-field-help', id: `${id}-help` }, property.description) : null;
    const choices = asker && new ChoiceList(readable(name), asker, () => this.typed, () => this.focus());
    const row = this.#kind === 'flag' ? [h('div', { class: 'dd-row' }, this.#control, label)] : [label, choices ? h('div', { class: 'dd-row' }, this.#control, choices.button) : this.#control, choices?.element];
    const offers = property.examples?.length ? this.#offers(property.examples.map(String)) : null;
    this.element = h('div', { class: 'dd-schema-field' }, ...row, offers, help, this.#error);
    this.#control.addEventListener('input', () => {
      this.fail('');
      choices?.narrow();
    });
  }

  /** The field's text as typed. */
  get typed(): string {
    return this.#control.value;
  }

  /** Return buttons that put words into the field, which takes several. */
  #offers(words: string[]): HTMLElement {
    const buttons = words.slice(0, OFFERS).map((word) => onClick(h('button', { type: 'button', class: 'dd-tag dd-offer' }, word), () => this.#add(word)));
    return h('div', { class: 'dd-offers', role: 'group', 'aria-label': __('Suggestions') }, ...buttons);
  }

  #add(word: string): void {
    const there = this.#control.value.split(',').map((part) => part.trim()).filter(Boolean);
    this.#control.value = (there.includes(word) ? there.filter((one) => one !== word) : [...there, word]).join(', ');
    this.#control.dispatchEvent(new Event('input'));
  }

  /** Return the value; undefined when it was left as it is by default. Shows and throws what is wrong. */
  value(): unknown {
    if (this.#control instanceof HTMLInputElement && this.#control.type === 'checkbox') {
      return this.#control.checked === Boolean(this.property.default) ? undefined : this.#control.checked;
    }
    try {
      const value = parse(this.#control.value, this.#kind, this.property);
      if (value === undefined && this.required) throw new Error(__('This field is required.'));
      return value;
    } catch (error) {
      this.fail(error instanceof Error ? error.message : String(error));
      throw error;
    }
  }

  /** Show what is wrong beside the field, "" for nothing. */
  fail(what: unknown): void {
    showMessage(this.#error, what);
    assign(this.#control, { 'aria-invalid': what ? 'true' : null, 'aria-errormessage': what ? this.#error.id : null });
  }

  focus(): void {
    this.#control.focus();
  }

  set text(value: string) {
    this.fail('');
    this.#control.value = value;
  }
}

/** Words that are written in another way than as a part of a name. */
const WRITTEN: Record<string, string> = { ssh: 'SSH', gpu: 'GPU', gpus: 'GPUs', cpu: 'CPU', cpus: 'CPUs', qos: 'QoS', vm: 'VM', ip: 'IP' };

/** Return the name of an option as a label: "GPUs per node". */
export function readable(name: string): string {
  const text = name.split('_').map((word) => WRITTEN[word] ?? word).join(' ');
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function makeControl(kind: Kind, property: Property, required: boolean): Control {
  const value = written(property.default, kind);
  if (kind === 'flag') return h('input', { type: 'checkbox', class: 'dd-check', checked: Boolean(property.default) });
  if (kind === 'choice') return makeSelect(property, value, required);
  if (kind === 'pairs' || kind === 'list') return textArea(value);
  const mode = kind === 'integer' ? 'numeric' : kind === 'number' ? 'decimal' : null;
  return h('input', { type: 'text', class: 'dd-input', inputmode: mode, placeholder: value, autocomplete: 'off', spellcheck: 'false' });
}

function textArea(value: string): HTMLTextAreaElement {
  const area = h('textarea', { class: 'dd-input dd-mono', rows: 2, spellcheck: 'false' });
  area.value = value;
  return area;
}

function makeSelect(property: Property, value: string, required: boolean): HTMLSelectElement {
  const choices = alternatives(property).flatMap((one) => one.enum ?? []).filter((one) => one !== null).map(String);
  const none = required && value ? [] : [h('option', { value: '' }, __('automatic'))];
  const select = h('select', { class: 'dd-input' }, ...none, ...choices.map((one) => h('option', { value: one }, one)));
  select.value = value;
  return select;
}
