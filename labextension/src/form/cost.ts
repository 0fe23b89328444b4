/** Cost per hour of the job, with the source of the price, and a field to override it. */
import { assign, h, setText, show } from '../ui/dom';
import { __, _n } from '../ui/trans';
import { TextField, freshId, labelled, setLine } from './controls';
import type { Part, Store } from './state';

export class Cost implements Part {
  readonly element: HTMLElement;
  readonly #own: TextField;
  readonly #sum = h('div', { class: 'dd-cost-sum dd-num', role: 'status' });
  readonly #source = h('div', { class: 'dd-form-note' });
  readonly #problem = h('div', { class: 'dd-form-note' });

  constructor(private readonly store: Store) {
    const id = freshId('price');
    this.#own = new TextField({ 'aria-labelledby': id, inputmode: 'decimal', placeholder: __('3.5 or 3.5 EUR') }, (value) => store.set({ price_per_hour: value.trim() }));
    this.element = h('section', { class: 'dd-form-part dd-cost' },
      labelled(__('Price of a node and hour'), id, this.#own.element),
      h('div', { class: 'dd-cost-said' }, this.#sum, this.#source, this.#problem));
  }

  update(): void {
    const { bills = false, per_hour = '', nodes = 1, source = '', problem = '', wrong = false } = this.store.get('cost') ?? {};
    // Local machines have no price.
    show(this.element, bills || Boolean(this.store.get('price_per_hour')));
    this.#own.show(this.store.get('price_per_hour'));
    setText(this.#sum, per_hour ? _n('about %2/h for %1 node', 'about %2/h for %1 nodes', nodes, per_hour) : '');
    setLine(this.#source, source);
    setLine(this.#problem, problem);
    assign(this.#problem, { class: `dd-form-note ${wrong ? 'dd-ink-err' : ''}`, role: wrong ? 'alert' : null });
  }
}
