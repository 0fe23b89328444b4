/** The clusters, one below the other, kept by name; the form that adds one is above them. */
import { ClusterForm } from '../form/clusterform';
import { h, show } from '../ui/dom';
import { __ } from '../ui/trans';
import { ClusterView } from './cluster';
import type { Actions, ClusterRow } from './types';

export class ClusterList {
  readonly element: HTMLElement;
  readonly #form = h('div', { class: 'dd-cluster-form-place' });
  readonly #list = h('div', { class: 'dd-clusters', role: 'list', 'aria-label': __('Clusters') });
  readonly #views = new Map<string, ClusterView>();
  readonly #opened = new Map<string, boolean>();
  /** Clusters that have answered once, and were opened then if that is worth it. */
  readonly #met = new Set<string>();

  #pointed = '';

  constructor(private readonly actions: Actions) {
    this.element = h('div', { class: 'dd-cluster-part' }, this.#form, this.#list);
    this.#list.addEventListener('contextmenu', (event) => this.#point(event));
  }

  /** Show these clusters in this order. */
  show(clusters: readonly ClusterRow[]): void {
    const names = new Set(clusters.map(({ name }) => name));
    for (const [name, view] of this.#views) {
      if (names.has(name)) continue;
      view.element.remove();
      this.#views.delete(name);
      this.#met.delete(name);
      this.#opened.delete(name);
    }
    clusters.forEach((cluster, at) => this.#show(cluster, at));
  }

  view(name: string): ClusterView | undefined {
    return this.#views.get(name);
  }

  /** Open the clusters whose nodes cost money, and bring the first of them into view. */
  revealBilled(): void {
    const costly = [...this.#views.values()].filter(({ billed }) => billed);
    for (const view of costly) view.reveal();
    costly[0]?.element.scrollIntoView({ block: 'nearest' });
  }

  /** The cluster whose menu was opened last. */
  get pointed(): ClusterView | undefined {
    return this.#views.get(this.#pointed);
  }

  #point({ target }: Event): void {
    if (target instanceof Element) this.#pointed = target.closest<HTMLElement>('.dd-cluster')?.dataset['name'] ?? '';
  }

  /** Open the form that adds a cluster. */
  add(): void {
    const { actions } = this;
    const form = new ClusterForm({
      kinds: () => actions.kinds(),
      choices: (kind, option, options) => actions.choices(kind, option, options),
      add: (name, kind, options) => actions.addCluster(name, kind, options),
      closed: () => this.#closeForm(),
    });
    this.#form.replaceChildren(form.element);
    show(this.#form, true);
    void form.open();
  }

  #closeForm(): void {
    this.#form.replaceChildren();
    show(this.#form, false);
  }

  #show(cluster: ClusterRow, at: number): void {
    const view = this.#views.get(cluster.name) ?? this.#make(cluster);
    view.update(cluster);
    this.#meet(cluster, view);
    const there = this.#list.children[at];
    if (there !== view.element) this.#list.insertBefore(view.element, there ?? null);
  }

  #make(cluster: ClusterRow): ClusterView {
    const { name } = cluster;
    const view = new ClusterView(cluster, this.actions, this.#opened.get(name) ?? false, (now) => this.#opened.set(name, now));
    this.#views.set(name, view);
    return view;
  }

  /** Open a cluster of several nodes or with GPUs, or with a problem, when it answers first; later that is the user's choice. */
  #meet({ name, nodes, problem, named, checked, in_use }: ClusterRow, view: ClusterView): void {
    if (this.#met.has(name) || !(checked || problem)) return;
    this.#met.add(name);
    if (!this.#opened.has(name)) view.open(nodes.length > 1 || Boolean(problem && named) || Boolean(in_use?.total['gpus']));
  }
}
