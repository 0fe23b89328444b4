/** The form that says where messages about jobs go, and what for. The address is a secret: only its host is shown. */
import { checkbox } from '../form/controls';
import { fieldId } from '../form/schemafields';
import { h, onClick, setText, show } from '../ui/dom';
import { sentences } from '../ui/refusal';
import { __ } from '../ui/trans';
import type { Notifications, NotificationsChange } from './types';

export interface MessageFormActions {
  messages(): Promise<Notifications>;
  changeMessages(change: NotificationsChange): Promise<Notifications>;
  testMessage(): Promise<Notifications>;
  /** The form is done with. */
  closed(): void;
}

/** What a message is sent for, as `monitoring/settings.py` has it. */
const kinds = (): [string, string][] => [['end', __('Completed jobs')], ['failure', __('Failures')], ['stall', __('Stalled jobs')], ['nan', __('NaN metrics')], ['rule', __('Alert rules')]];

export class MessageForm {
  readonly element: HTMLFormElement;
  readonly #where = h('div', { class: 'dd-s12' });
  readonly #address = h('input', { type: 'password', class: 'dd-input', id: fieldId(), autocomplete: 'off', spellcheck: 'false', placeholder: 'https://' });
  readonly #kinds = kinds().map(([kind, words]) => ({ kind, ...checkbox(words, () => this.#draw()) }));
  readonly #save = button(__('Save'));
  readonly #test = button(__('Send a test message'));
  readonly #forget = button(__('Remove address'));
  readonly #done = h('div', { class: 'dd-s12', role: 'status' });
  readonly #error = h('div', { class: 'dd-s12 dd-ink-err', role: 'alert', hidden: true });
  #now: Notifications | null = null;
  #busy = false;

  constructor(private readonly actions: MessageFormActions) {
    const label = h('label', { for: this.#address.id, class: 'dd-s12' }, __('Address of a webhook'));
    const note = h('div', { class: 'dd-s12 dd-sub' }, __('Slack, Teams, ntfy or any JSON webhook. Treat it as a secret: it is stored on the server and never shown again.'));
    const what = h('div', { role: 'group', 'aria-label': __('Notify about') }, h('div', { class: 'dd-s12' }, __('Notify about')), ...this.#kinds.map(({ element }) => element));
    const close = onClick(button(__('Close')), () => this.actions.closed());
    this.element = h('form', { class: 'dd-cluster-form', 'aria-label': __('Job notifications'), novalidate: true },
      h('div', { class: 'dd-b' }, __('Job notifications')), this.#where, label, this.#address, note, what, this.#done, this.#error,
      h('div', { class: 'dd-row dd-message-buttons' }, this.#save, this.#test, this.#forget, close));
    onClick(this.#test, () => void this.#do(() => this.#sendTest(), __('The test message was sent.')));
    onClick(this.#forget, () => void this.#do(() => this.actions.changeMessages({ webhook: '' }), __('The address was removed.')));
    onClick(this.#save, () => void this.#do(() => this.#change(), __('Saved.')));
    this.element.addEventListener('input', () => this.#draw());
    this.element.addEventListener('submit', (event) => {
      event.preventDefault();
      if (!this.#save.disabled) this.#save.click();
    });
    this.element.addEventListener('keydown', (event) => {
      event.stopPropagation();
      if (event.key === 'Escape') this.actions.closed();
    });
  }

  /** Ask where messages go now, and put the focus on the address. */
  open(): void {
    this.#address.focus();
    void this.#do(() => this.actions.messages(), '');
  }

  get #wanted(): string {
    return this.#kinds.flatMap(({ kind, input }) => (input.checked ? [kind] : [])).join(',');
  }

  /** Save the form; without an address the stored one is kept. */
  #change(): Promise<Notifications> {
    const address = this.#address.value.trim();
    return this.actions.changeMessages({ notify: this.#wanted, ...(address ? { webhook: address } : {}) });
  }

  /** The test message goes to the address in the form. */
  async #sendTest(): Promise<Notifications> {
    this.#show(await this.#change());
    return this.actions.testMessage();
  }

  async #do(asked: () => Promise<Notifications>, done: string): Promise<void> {
    this.#busy = true;
    this.#say('', '');
    this.#draw();
    try {
      this.#show(await asked());
      this.#say(done, '');
    } catch (error) {
      this.#say('', sentences(error));
    }
    this.#busy = false;
    this.#draw();
  }

  #show(now: Notifications): void {
    this.#now = now;
    this.#address.value = '';
    const wanted = now.notify.split(',');
    for (const { kind, input } of this.#kinds) input.checked = wanted.includes(kind);
    this.#draw();
  }

  #draw(): void {
    const host = this.#now?.host ?? '';
    setText(this.#where, this.#now ? (host ? __('Notifications are sent to %1.', host) : __('Notifications are off.')) : '');
    const typed = this.#address.value.trim() !== '';
    this.#save.disabled = this.#busy || !this.#now || !this.#wanted || (!typed && this.#wanted === this.#now.notify);
    this.#test.disabled = this.#busy || !this.#wanted || (!typed && !host);
    this.#forget.disabled = this.#busy;
    show(this.#forget, host !== '');
  }

  #say(done: string, wrong: string): void {
    setText(this.#done, done);
    setText(this.#error, wrong);
    show(this.#error, wrong !== '');
  }
}

function button(words: string): HTMLButtonElement {
  return h('button', { type: 'button', class: 'dd-btn dd-small' }, words);
}
