/** What a person does while a sign-in waits: a code shown large with its page and the time that is left. */
import { copy } from '../ui/clipboard';
import { h, onClick, setText } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import type { AzureSignIn } from './types';
import { clockOf } from './text';

export class Prompt {
  readonly element: HTMLElement;
  readonly #left = h('span', { class: 'dd-sub dd-s12 dd-num' });
  readonly #copy: HTMLButtonElement | null = null;
  #until = Infinity;

  constructor(status: AzureSignIn, cancel: () => void) {
    const stop = onClick(h('button', { type: 'button', class: 'dd-btn' }, __('Cancel')), cancel);
    const { prompt } = status;
    if (!prompt) {
      const text = __('A sign-in page has opened in the browser of the machine where Jupyter runs. Continue there.');
      this.element = h('div', { class: 'dd-azure-prompt' }, h('p', {}, text), h('div', { class: 'dd-row' }, stop));
      return;
    }
    this.#until = performance.now() / 1000 + prompt.seconds_left;
    const button = h('button', { type: 'button', class: 'dd-btn dd-row' }, icon('copy'), __('Copy code'));
    this.#copy = onClick(button, () => void copy(prompt.user_code, button));
    const code = h('output', { class: 'dd-azure-code', 'aria-label': __('Code: %1', prompt.user_code.split('').join(' ')) }, prompt.user_code);
    const steps = h('p', {}, __('Open the sign-in page, on any computer or phone, and enter this code:'));
    const row = h('div', { class: 'dd-row dd-azure-buttons' }, page(prompt.address), button, stop);
    this.element = h('div', { class: 'dd-azure-prompt' }, steps, h('div', { class: 'dd-row' }, code, this.#left), row, h('p', { class: 'dd-sub dd-s12 dd-azure-address' }, prompt.address));
    this.tick();
  }

  /** Show the time that is left; return whether it is over. */
  tick(): boolean {
    const left = this.#until - performance.now() / 1000;
    if (Number.isFinite(left)) setText(this.#left, __('%1 left', clockOf(left)));
    return left <= 0;
  }

  focus(): void {
    (this.#copy ?? this.element.querySelector('button'))?.focus();
  }
}

/** The link to the page; an address without https is text only. */
function page(address: string): HTMLElement | null {
  if (!address.startsWith('https://')) return null;
  return h('a', { class: 'dd-btn dd-primary', href: address, target: '_blank', rel: 'noopener noreferrer' }, __('Open sign-in page'));
}
