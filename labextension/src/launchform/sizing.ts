/** The sum that a job's size is: nodes times processes per node. */
import { h, onClick, setText } from '../dom';
import { plural } from '../words';
import { Stepper, freshId, heading } from './controls';
import type { Part, Store } from './state';

export class Sizing implements Part {
  readonly element: HTMLElement;
  readonly #nodes: Stepper;
  readonly #perNode: Stepper;
  readonly #auto: HTMLButtonElement;
  readonly #total = h('div', { class: 'dd-form-total dd-nw', 'aria-live': 'polite' });

  constructor(private readonly store: Store) {
    const [nodes, perNode] = [freshId('nodes'), freshId('per-node')];
    this.#nodes = new Stepper('nodes', nodes, (value) => store.set({ node_count: value }));
    this.#perNode = new Stepper('processes', perNode, (value) => store.set({ process_count_per_node: value, automatic: false }));
    this.#auto = onClick(h('button', { type: 'button', class: 'dd-tag dd-auto' }), () => store.set({ automatic: !store.get('automatic') }));
    this.element = h('section', { class: 'dd-form-part dd-sum' },
      h('div', {}, heading('Nodes', nodes), this.#nodes.element),
      h('span', { class: 'dd-sum-sign', 'aria-hidden': 'true' }, '×'),
      h('div', {}, heading('Processes per node', perNode), h('div', { class: 'dd-row' }, this.#perNode.element, this.#auto)),
      h('span', { class: 'dd-sum-sign', 'aria-hidden': 'true' }, '='),
      h('div', {}, h('h3', { class: 'dd-form-heading dd-plain' }, 'Total'), this.#total),
    );
  }

  update(): void {
    const [nodes, perNode] = [this.store.get('node_count'), this.store.get('process_count_per_node')];
    this.#nodes.show(nodes);
    this.#perNode.show(perNode);
    setText(this.#auto, this.store.get('automatic_text'));
    this.#auto.setAttribute('aria-pressed', String(this.store.get('automatic')));
    setText(this.#total, plural(nodes * perNode, 'process'));
  }
}
