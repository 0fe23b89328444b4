/** One machine of a cluster: its state, its GPUs, what it does or why it is down. Changed in place, made once. */
import { assign, fill, h, onClick, setText, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import type { ClusterNode } from './types';

export class NodeView {
  readonly element: HTMLElement;
  readonly #mark = h('span', { class: 'dd-node-mark', role: 'img' });
  readonly #name = h('span', { class: 'dd-ell' });
  readonly #gpus = h('span', { class: 'dd-node-gpus dd-sub dd-ell' });
  readonly #detail = h('span', { class: 'dd-node-detail dd-ell' });
  readonly #check: HTMLButtonElement;
  readonly #more = h('span', { class: 'dd-node-more dd-sub dd-num dd-ell' });

  constructor(check: () => void) {
    this.#check = onClick(h('button', { type: 'button', class: 'dd-link dd-s12' }, __('Check')), check);
    this.element = h('li', { class: 'dd-node dd-s12' }, this.#mark, this.#name, this.#gpus, this.#detail, this.#check, this.#more);
  }

  /** Show a newer state; `wordy` shows the machine as text, otherwise as a tooltip. */
  update(node: ClusterNode, wordy: boolean): void {
    assign(this.element, { 'data-state': node.state, 'data-name': node.name, 'data-billed': node.billed });
    const more = machineWords(node);
    const down = node.state === 'down';
    this.#drawMark(node.state);
    setText(this.#name, node.name);
    assign(this.#name, { title: [node.name, more].filter(Boolean).join('\n') });
    setText(this.#gpus, node.gpus ? `${node.gpus} × ${node.gpu_name || 'GPU'}` : '');
    setText(this.#detail, node.detail);
    assign(this.#detail, { title: node.detail || null });
    show(this.#check, down);
    setText(this.#more, more);
    show(this.#more, wordy && more !== '' && !down);
  }

  #drawMark(state: ClusterNode['state']): void {
    const words: Record<string, string> = { idle: __('idle'), busy: __('busy'), down: __('not responding'), unknown: __('unknown'), starting: __('starting') };
    const names: Record<string, string> = { down: 'close', unknown: 'lost', starting: 'starting' };
    const name = names[state];
    assign(this.#mark, { title: words[state], 'aria-label': words[state] });
    fill(this.#mark, state, () => [name ? icon(name, 12) : null]);
  }
}

/** Return what machine a node is and how busy: only what is known. */
export function machineWords({ python, cores, load, ranks }: ClusterNode): string {
  const words = [
    python && __('Python %1', python),
    cores && _n('%1 core', '%1 cores', cores),
    load !== null && __('load %1', load.toFixed(1)),
    ranks !== null && ranks > 0 && _n('%1 rank', '%1 ranks', ranks),
  ];
  return words.filter(Boolean).join(', ');
}
