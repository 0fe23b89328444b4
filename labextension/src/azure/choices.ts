/** The form that asks how to sign in: one method of three, with the settings that few need folded away. */
import { h, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { fieldId } from '../form/schemafields';
import { METHODS } from './text';
import type { AzureSignIn, Kind, Start } from './types';

type TokenCache = AzureSignIn['settings']['token_cache'];

export class Choices {
  readonly element: HTMLFormElement;
  readonly #group = fieldId();
  readonly #tenant = h('input', { type: 'text', class: 'dd-input', id: fieldId(), autocomplete: 'off', spellcheck: 'false' });
  readonly #client = h('input', { type: 'text', class: 'dd-input', id: fieldId(), autocomplete: 'off', spellcheck: 'false' });
  readonly #cache = h('select', { class: 'dd-input', id: fieldId() });
  readonly #keep = h('div', { class: 'dd-schema-field' });
  readonly #submit = h('button', { type: 'submit', class: 'dd-btn dd-primary' }, __('Sign in'));

  /** `chosen` is called with what was chosen when the user presses "Sign in"; `closed` where there is a way back. */
  constructor(status: AzureSignIn, chosen: (start: Start) => void, closed: (() => void) | null) {
    const { settings } = status;
    const first = settings.credential || 'device_code';
    this.#tenant.value = settings.tenant_id;
    this.#client.value = settings.client_id;
    const list = h('div', { class: 'dd-azure-ways', role: 'radiogroup', 'aria-label': __('How to sign in') }, ...METHODS().map(([kind, title, when]) => this.#method(kind, title, when, kind === first)));
    const buttons = h('div', { class: 'dd-row' }, this.#submit, closed && back(closed));
    this.element = h('form', { class: 'dd-azure-form', 'aria-label': __('Sign in to Azure') }, list, this.#more(settings.token_cache), buttons);
    this.element.addEventListener('change', () => this.#changed());
    this.element.addEventListener('submit', (event) => {
      event.preventDefault();
      chosen(this.#start());
    });
    this.#changed();
  }

  focus(): void {
    this.element.querySelector<HTMLInputElement>('input[type=radio]:checked')?.focus();
  }

  set busy(busy: boolean) {
    this.#submit.disabled = busy;
    this.element.setAttribute('aria-busy', String(busy));
  }

  get #kind(): Kind {
    return (this.element.querySelector<HTMLInputElement>('input[type=radio]:checked')?.value ?? 'device_code') as Kind;
  }

  #start(): Start {
    return { credential: this.#kind, tenant_id: this.#tenant.value.trim(), client_id: this.#client.value.trim(), token_cache: this.#cache.value };
  }

  /** Only a sign-in of a person can be kept. */
  #changed(): void {
    show(this.#keep, this.#kind !== 'default');
  }

  #method(kind: Kind, title: string, when: string, checked: boolean): HTMLElement {
    const input = h('input', { type: 'radio', name: this.#group, value: kind, id: fieldId(), checked });
    return h('label', { class: 'dd-azure-way', for: input.id }, input, h('span', { class: 'dd-grow' }, h('span', { class: 'dd-b' }, title), ' ', h('span', { class: 'dd-sub dd-s12' }, when)));
  }

  #more(cache: TokenCache): HTMLElement {
    const options: [TokenCache, string][] = [['', __("in this machine's keyring, or in a file that only you can read")], ['keyring', __("in this machine's keyring only")]];
    this.#cache.append(...options.map(([value, text]) => h('option', { value, selected: value === cache }, text)));
    this.#keep.append(h('label', { for: this.#cache.id, class: 'dd-s12' }, __('Save the sign-in')), this.#cache);
    const tenant = labelled(__('Tenant (directory)'), this.#tenant, __('Leave empty to use the tenant of the account.'));
    const client = labelled(__('Client id'), this.#client, __("Leave empty to use the app of Azure's own tools."));
    const summary = h('summary', { class: 'dd-summary dd-s12' }, icon('right', 12, 'dd-sub'), __('More options'));
    return h('details', { class: 'dd-more-fields', open: Boolean(this.#tenant.value || this.#client.value) }, summary, h('div', { class: 'dd-fields' }, tenant, client, this.#keep));
  }
}

function labelled(text: string, input: HTMLInputElement, help: string): HTMLElement {
  const note = h('span', { class: 'dd-sub dd-field-help', id: fieldId() }, help);
  input.setAttribute('aria-describedby', note.id);
  return h('div', { class: 'dd-schema-field' }, h('label', { for: input.id, class: 'dd-s12' }, text), input, note);
}

function back(closed: () => void): HTMLElement {
  const button = h('button', { type: 'button', class: 'dd-btn' }, __('Close'));
  button.addEventListener('click', closed);
  return button;
}
