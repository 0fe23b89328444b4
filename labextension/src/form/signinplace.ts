/** The sign-in to Azure within the launch form: it opens where data wants it and goes away when somebody is signed in. */
import { SignIn } from '../azure/signin';
import type { SignInActions } from '../azure/types';
import { h, onClick, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';

export class SignInPlace {
  readonly element = h('section', { class: 'dd-azure-panel', 'aria-label': __('Sign in to Azure'), hidden: true });
  #view: SignIn | null = null;
  #answered = false;

  /** `done` hears that somebody is signed in now. */
  constructor(private readonly actions: SignInActions, private readonly done: () => void) {}

  /** Show it, or go to it. */
  open(): void {
    if (this.#view) {
      this.#view.focus();
      return;
    }
    this.#answered = false;
    const opener = document.activeElement;
    this.#view = new SignIn(this.actions, ({ state }) => this.#changed(state));
    const close = h('button', { type: 'button', class: 'dd-btn dd-quiet dd-icon', title: __('Close'), 'aria-label': __('Close') }, icon('close', 14));
    const title = h('h3', { class: 'dd-title dd-row' }, icon('cloud'), h('span', { class: 'dd-grow' }, __('Sign in to Azure')), onClick(close, () => this.#close(opener)));
    this.element.replaceChildren(title, this.#view.element);
    show(this.element, true);
    this.#view.wake();
  }

  #changed(state: string): void {
    if (state === 'signed_in') {
      this.#close();
      this.done();
    } else if (!this.#answered) {
      this.#answered = true;
      this.#view?.focus();
    }
  }

  #close(next: Element | null = null): void {
    this.#view?.rest();
    this.#view = null;
    this.element.replaceChildren();
    show(this.element, false);
    if (next instanceof HTMLElement) next.focus();
  }
}
