/** An inline confirmation with the focus on No; Escape also means No. At most one is open in a list. */
import { h, onClick } from './dom';
import { __ } from './trans';

export class InlineConfirm {
  readonly element: HTMLElement;
  readonly answered: Promise<boolean>;
  readonly #no: HTMLButtonElement;
  #answer: (yes: boolean) => void = () => undefined;

  constructor(text: string, yesWord = __('Yes'), noWord = __('No')) {
    this.answered = new Promise((resolve) => (this.#answer = resolve));
    const yes = onClick(h('button', { type: 'button', class: 'dd-btn dd-small dd-danger' }, yesWord), () => this.close(true));
    this.#no = onClick(h('button', { type: 'button', class: 'dd-btn dd-small' }, noWord), () => this.close(false));
    this.element = h('div', { class: 'dd-question dd-row dd-s12', role: 'group', 'aria-label': text }, h('span', { class: 'dd-grow' }, text), yes, this.#no);
    this.element.addEventListener('keydown', (event) => this.#key(event));
  }

  focus(): void {
    this.#no.focus();
  }

  close(yes: boolean): void {
    this.element.remove();
    this.#answer(yes);
  }

  #key(event: KeyboardEvent): void {
    event.stopPropagation();
    if (event.key === 'Escape') this.close(false);
  }
}
