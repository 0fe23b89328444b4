/** The sum that a job's size is: nodes times processes per node. */
import { h, onClick, setText } from '../ui/dom';
import { __ } from '../ui/trans';
import { processCount } from '../ui/format';
import { Problem, Stepper, freshId, heading } from './controls';
import type { Part, Store } from './state';

export class Sizing implements Part {
  readonly element: HTMLElement;
  readonly #nodes: Stepper;
  readonly #perNode: Stepper;
  readonly #auto: HTMLButtonElement;
  readonly #total = h('div', { class: 'dd-form-total dd-nw', 'aria-live': 'polite' });
  readonly #problem: Problem;

  constructor(private readonly store: Store) {
    this.#problem = new Problem(store, ['node_count', 'process_count_per_node']);
    const [nodes, perNode] = [freshId('nodes'), freshId('per-node')];
    this.#nodes = new Stepper({ less: __('Fewer nodes'), more: __('More nodes') }, nodes, (value) => store.set({ node_count: value }));
    this.#perNode = new Stepper({ less: __('Fewer processes'), more: __('More processes') }, perNode, (value) => store.set({ process_count_per_node: value, automatic: false }));
    this.#auto = onClick(h('button', { type: 'button', class: 'dd-tag dd-auto' }), () => store.set({ automatic: !store.get('automatic') }));
    this.element = h('section', { class: 'dd-form-part dd-sum' },
      h('div', {}, heading(__('Nodes'), nodes), this.#nodes.element),
      h('span', { class: 'dd-sum-sign', 'aria-hidden': 'true' }, '×'),
      h('div', {}, heading(__('Processes per node'), perNode), h('div', { class: 'dd-row' }, this.#perNode.element, this.#auto)),
      h('span', { class: 'dd-sum-sign', 'aria-hidden': 'true' }, '='),
      h('div', {}, h('h3', { class: 'dd-form-heading dd-plain' }, __('Total')), this.#total),
      this.#problem.element,
    );
  }

  update(): void {
    const [nodes, perNode] = [this.store.get('node_count'), this.store.get('process_count_per_node')];
    this.#nodes.show(nodes);
    this.#perNode.show(perNode);
    const gpus = this.store.get('gpu_count');
    setText(this.#auto, gpus ? __('auto: one per GPU') : __('auto: 1, no GPU'));
    this.#auto.setAttribute('aria-pressed', String(this.store.get('automatic')));
    this.#problem.update();
    setText(this.#total, processCount(nodes * perNode));
  }
}
