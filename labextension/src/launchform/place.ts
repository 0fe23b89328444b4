/** How the ranks meet and where they run: backend and cluster. What cannot be used here is shown with its reason. */
import { fill, h } from '../dom';
import { icon } from '../icons';
import { Segments, Select, freshId, labelled, setLine } from './controls';
import type { Part, Store } from './state';

export class Place implements Part {
  readonly element: HTMLElement;
  readonly #backends: Segments;
  readonly #clusters: Select;
  readonly #versions = h('div', { class: 'dd-form-note' });
  readonly #reasons = h('div', { class: 'dd-form-note' });
  readonly #machine = h('div', { class: 'dd-form-note' });

  constructor(private readonly store: Store) {
    const [backend, cluster] = [freshId('backend'), freshId('cluster')];
    const choices = store.get('choices').backends.map(({ label, reason }) => ({ value: label, text: label, reason }));
    this.#backends = new Segments(backend, choices, (label) => store.set({ distributed_backend: label, backend_options: {} }));
    this.#clusters = new Select(cluster, (name) => store.set({ compute_target: name }), icon('laptop', 16, 'dd-sub'));
    this.element = h('section', { class: 'dd-form-part dd-place' },
      labelled('Backend', backend, this.#backends.element, this.#versions, this.#reasons),
      labelled('Cluster', cluster, this.#clusters.element, this.#machine),
    );
  }

  update(): void {
    const { backends, clusters } = this.store.get('choices');
    const backend = backends.find((one) => one.label === this.store.get('distributed_backend'));
    this.#backends.show(backend?.label ?? '');
    setLine(this.#versions, backend ? `${backend.detail} on ${this.store.get('compute_target')}` : '');
    const unusable = backends.filter((one) => one.reason);
    fill(this.#reasons, JSON.stringify(unusable), () => [...byReason(unusable)].map(([reason, labels]) =>
      h('div', {}, h('span', { class: 'dd-ink-warn' }, `${labels.join(', ')} cannot be chosen: `), reason)));
    this.#clusters.offer(clusters.map(({ name, title, reason }) => ({ value: name, text: name, more: title, reason })));
    this.#clusters.show(this.store.get('compute_target'));
    const cluster = clusters.find((one) => one.name === this.store.get('compute_target'));
    const plan = cluster?.local ? 'The VM series is a plan for renting: the job runs on this machine.' : '';
    setLine(this.#machine, [cluster?.detail ? `${cluster.detail}.` : '', plan].filter(Boolean).join(' '));
  }
}

function byReason(backends: { label: string; reason: string }[]): Map<string, string[]> {
  const found = new Map<string, string[]>();
  for (const { label, reason } of backends) found.set(reason, [...(found.get(reason) ?? []), label]);
  return found;
}
