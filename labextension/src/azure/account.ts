/** Who is signed in, by which way, and the subscription that is used first. */
import { h, onClick } from '../ui/dom';
import { __ } from '../ui/trans';
import { showMessage } from '../ui/refusal';
import { fieldId } from '../form/schemafields';
import type { AzureSignIn, SignInActions } from './types';
import { titleOf } from './text';

/** Actions of the panel around an account's view. */
interface Around {
  changed(next: Promise<AzureSignIn>): void;
  /** Sign in otherwise. */
  other(): void;
}

export class Account {
  readonly element: HTMLElement;
  readonly #select = h('select', { class: 'dd-input', id: fieldId() });
  readonly #note = h('span', { class: 'dd-sub dd-field-help', role: 'status' });

  constructor(status: AzureSignIn, private readonly actions: SignInActions, around: Around) {
    const { account, settings } = status;
    const facts: [string, string][] = [[__('Method'), titleOf(status.kind)], [__('Tenant'), account?.tenant_id ?? ''], [__('Cloud'), settings.cloud === 'AzureCloud' ? '' : settings.cloud]];
    const list = h('dl', { class: 'dd-azure-facts dd-s12' }, ...facts.filter(([, value]) => value).flatMap(([name, value]) => [h('dt', { class: 'dd-sub' }, name), h('dd', { class: 'dd-ell', title: value }, value)]));
    const field = h('div', { class: 'dd-schema-field' }, h('label', { for: this.#select.id, class: 'dd-s12' }, __('Subscription')), this.#select, this.#note);
    const out = button(__('Sign out'), () => around.changed(actions.signOut()));
    const other = button(__('Sign in another way'), () => around.other());
    this.element = h('div', { class: 'dd-azure-account' }, list, field, h('div', { class: 'dd-row dd-azure-buttons' }, out, other));
    this.#select.addEventListener('change', () => around.changed(actions.settle({ subscription_id: this.#select.value })));
    void this.#fill(settings.subscription_id);
  }

  async #fill(chosen: string): Promise<void> {
    this.#select.disabled = true;
    showMessage(this.#note, __('Loading the subscriptions…'));
    try {
      const subscriptions = await this.actions.subscriptions();
      const known = subscriptions.some(({ id }) => id === chosen);
      const options = subscriptions.map(({ id, name }) => h('option', { value: id, selected: id === chosen, title: id }, name));
      if (!chosen) options.unshift(h('option', { value: '', selected: true }, __('Choose a subscription')));
      else if (!known) options.unshift(h('option', { value: chosen, selected: true }, chosen));
      this.#select.replaceChildren(...options);
      this.#select.disabled = subscriptions.length === 0;
      showMessage(this.#note, subscriptions.length ? '' : __('This account has no subscriptions.'));
    } catch (error) {
      showMessage(this.#note, error);
    }
  }
}

const button = (text: string, action: () => void): HTMLButtonElement => onClick(h('button', { type: 'button', class: 'dd-btn' }, text), action);
