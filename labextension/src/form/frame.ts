/** The frame in which a page shows the launch form: bars while it is worked out, and what to do when it cannot be. */
import { adopt, h, onClick } from '../ui/dom';
import { __ } from '../ui/trans';
import { explained } from '../ui/refusal';
import { Form, type FormPlace } from './form';
import { FormStore, type Text } from './store';

/** Milliseconds before the loading bars, and before the message that no response has arrived. */
const UNSEEN = 300;
const SILENT = 3000;

export class FormFrame {
  readonly element = h('div', { class: 'dd-form-frame' });
  #store: FormStore | undefined;
  #over = false;

  constructor(private readonly text: Text, private readonly place: FormPlace) {
    adopt(this.element);
    void this.#begin();
  }

  /** The form's state, undefined while the first answer is awaited. */
  get store(): FormStore | undefined {
    return this.#store;
  }

  /** Put the focus where Enter submits, or on the first button when that is not possible now. */
  focus(): void {
    const usable = (where: string): HTMLElement | null => this.element.querySelector<HTMLElement>(`${where}:not(:disabled)`);
    (usable('.dd-submit') ?? usable('button'))?.focus();
  }

  dispose(): void {
    this.#over = true;
    this.#store?.dispose();
  }

  async #begin(): Promise<void> {
    const timer = setTimeout(() => this.element.replaceChildren(bars()), UNSEEN);
    const waiting = h('div', { class: 'dd-sub dd-s12', role: 'status' }, this.place.waiting ?? __('No response from the kernel yet'));
    const silent = setTimeout(() => this.element.firstElementChild?.append(waiting), SILENT);
    try {
      const first = await FormStore.begin(this.text);
      if (!this.#over) this.#show(first);
    } catch (error) {
      if (!this.#over) this.element.replaceChildren(this.#refusal(error));
    } finally {
      clearTimeout(timer);
      clearTimeout(silent);
    }
  }

  #show(first: Awaited<ReturnType<typeof FormStore.begin>>): void {
    const store = new FormStore(this.text, first, () => form.update());
    const form = new Form(store, this.place);
    this.#store = store;
    const focused = this.element.contains(document.activeElement) || document.activeElement === document.body;
    this.element.replaceChildren(form.element);
    form.update();
    if (focused || this.place.close) this.focus();
  }

  #refusal(error: unknown): HTMLElement {
    const again = onClick(h('button', { type: 'button', class: 'dd-btn' }, __('Try again')), () => void this.#begin());
    const close = this.place.close && onClick(h('button', { type: 'button', class: 'dd-btn dd-quiet' }, __('Close')), this.place.close);
    return h('div', { class: 'dd-form dd-form-refusal' }, h('div', { class: 'dd-ink-err', role: 'alert' }, ...explained(error)), h('div', { class: 'dd-row' }, again, close));
  }
}

function bars(): HTMLElement {
  return h('div', { class: 'dd-form dd-form-bars', role: 'status', 'aria-label': __('Loading the form') }, ...[40, 90, 70, 80].map((width) => h('span', { style: `width: ${width}%` })));
}
