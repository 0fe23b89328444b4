/** How the ranks meet and where they run: backend and cluster. What cannot be used here is shown with its reason. */
import { fill, h, quoted } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { Problem, Segments, Select, freshId, labelled, setLine } from './controls';
import { NamedClusters, type NamedClusterActions } from './namedclusters';
import { ClusterStatusView } from './clusterstatus';
import type { Part, Store } from './state';

export class Place implements Part {
  readonly element: HTMLElement;
  readonly #backends: Segments;
  readonly #clusters: Select;
  readonly #versions = h('div', { class: 'dd-form-note' });
  readonly #reasons = h('div', { class: 'dd-form-note' });
  readonly #machine = h('div', { class: 'dd-form-note' });
  readonly #now: ClusterStatusView;
  readonly #named: NamedClusters;
  readonly #icon = h('span', { class: 'dd-sub' });
  readonly #problems: [Problem, Problem];

  constructor(private readonly store: Store, clusters: NamedClusterActions) {
    this.#named = new NamedClusters(store, clusters, () => this.#clusters.focus());
    this.#now = new ClusterStatusView(store);
    this.#problems = [new Problem(store, ['distributed_backend']), new Problem(store, ['compute_target', 'kernel_name'])];
    const [backend, cluster] = [freshId('backend'), freshId('cluster')];
    const choices = store.get('choices').backends.map(({ label, reason }) => ({ value: label, text: label, reason }));
    this.#backends = new Segments(backend, choices, (label) => store.set({ distributed_backend: label, backend_options: {} }));
    this.#clusters = new Select(cluster, (name) => store.set({ compute_target: name }), this.#icon, () => store.send({ type: 'look' }));
    this.element = h('section', { class: 'dd-form-part dd-place' },
      labelled(__('Backend'), backend, this.#backends.element, this.#problems[0].element, this.#versions, this.#reasons),
      labelled(__('Cluster'), cluster, this.#clusters.element, this.#problems[1].element, this.#machine, this.#now.element, this.#named.element),
      this.#named.place,
    );
  }

  update(): void {
    const { backends, clusters } = this.store.get('choices');
    const backend = backends.find((one) => one.label === this.store.get('distributed_backend'));
    const cluster = clusters.find((one) => one.name === this.store.get('compute_target'));
    fill(this.#icon, String(cluster?.is_remote), () => [icon(cluster?.is_remote ? 'server' : 'laptop')]);
    // Other machines have packages of their own: what is missing here may be there.
    const unusable = cluster?.is_remote ? [] : backends.filter((one) => one.reason);
    this.#backends.allow(new Map(unusable.map(({ label, reason }) => [label, reason])));
    this.#backends.show(backend?.label ?? '');
    setLine(this.#versions, backend && !cluster?.is_remote ? __('%1 on %2', backend.detail, this.store.get('compute_target')) : '');
    for (const problem of this.#problems) problem.update();
    this.#now.update();
    this.#named.update();
    fill(this.#reasons, JSON.stringify(unusable), () => [...byReason(unusable)].map(([reason, labels]) =>
      h('div', {}, h('span', { class: 'dd-ink-warn' }, __('%1 cannot be chosen:', labels.join(', ')), ' '), ...quoted(reason))));
    this.#clusters.offer(clusters.map(({ name, title, system, reason, named }) => ({ value: name, text: name, more: system ? __('this %1 machine', system) : title, reason, anyway: named })));
    this.#clusters.show(this.store.get('compute_target'));
    setLine(this.#machine, cluster?.detail ? `${cluster.detail}.` : '');
  }
}

function byReason(backends: { label: string; reason: string }[]): Map<string, string[]> {
  const found = new Map<string, string[]>();
  for (const { label, reason } of backends) found.set(reason, [...(found.get(reason) ?? []), label]);
  return found;
}
