/** The machines of the chosen cluster as they are now, and what would keep the job from running there. */
import { checkItem } from '../ui/checks';
import { fill, h } from '../ui/dom';
import { icon } from '../ui/icons';
import { explained } from '../ui/refusal';
import { __, _n } from '../ui/trans';
import { link } from './controls';
import type { CachedStatus, NodeInfo, Part, Store } from './state';

const MARKS: Record<NodeInfo['state'], [string, string]> = {
  up: ['running', 'dd-ink-brand'],
  down: ['close', 'dd-ink-err'],
  starting: ['starting', 'dd-ink-brand'],
  unknown: ['lost', 'dd-ink-warn'],
};
/** More machines than these are only counted. */
const MOST = 8;

export class ClusterStatusView implements Part {
  readonly element = h('div', { class: 'dd-place-now dd-s12', hidden: true });

  constructor(private readonly store: Store) {}

  update(): void {
    const cluster = this.store.get('cluster_status');
    this.element.hidden = cluster === null;
    fill(this.element, JSON.stringify(cluster), () => (cluster ? this.#parts(cluster) : []));
  }

  #parts({ status, checks: results, pending }: CachedStatus): (Node | false)[] {
    const { problem = '', remedy = '', code = '', nodes = [] } = status ?? {};
    const checks = results ?? [];
    const state = h('div', { class: 'dd-place-state', role: 'status' }, h('span', { class: 'dd-sub' }, stateOf(status !== null, results !== null, pending, checks.length)), !pending && link(__('Check again'), () => this.store.send({ type: 'refresh' })));
    return [
      nodes.length > 0 && h('ul', { class: 'dd-place-nodes' }, ...nodes.filter(({ state }, at) => at < MOST || state !== 'up').slice(0, 2 * MOST).map(node)),
      nodes.length > MOST && h('div', { class: 'dd-sub' }, _n('%1 node', '%1 nodes', nodes.length)),
      Boolean(problem) && h('div', { class: 'dd-ink-err' }, ...explained(problem, remedy, code)),
      checks.length > 0 && h('ul', { class: 'dd-check-list' }, ...checks.map(checkItem)),
      state,
    ];
  }
}

function stateOf(known: boolean, checked: boolean, pending: boolean, found: number): string {
  if (pending) return known ? __('Checking the nodes') : __('Reaching the nodes');
  if (!known) return __('Its nodes have not responded yet.');
  if (!checked) return '';
  return found ? _n('%1 finding', '%1 findings', found) : __('All node checks passed');
}

function node({ name, state, detail, gpus, gpu_name }: NodeInfo): HTMLElement {
  const [mark, ink] = MARKS[state];
  const words = { up: __('up'), down: __('not responding'), starting: __('starting'), unknown: __('unknown') };
  const more = [gpus ? `${gpus} × ${gpu_name || 'GPU'}` : '', detail].filter(Boolean).join(', ');
  const title = h('span', { role: 'img', title: words[state], 'aria-label': words[state] }, icon(mark, 12, ink));
  return h('li', {}, title, h('span', { class: 'dd-b' }, name), more && h('span', { class: state === 'down' ? 'dd-ink-err' : 'dd-sub' }, more));
}
