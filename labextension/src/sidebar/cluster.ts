/** One cluster: a line that opens to its nodes, and what can be done with it. Changed in place, made once. */
import { assign, fill, h, onClick, quoted, setText, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import { InlineConfirm } from '../ui/inlineconfirm';
import { explained, showMessage } from '../ui/refusal';
import { CheckView } from './checkview';
import { billWords, keptUpWords } from './costtext';
import { NodeView } from './node';
import { SlotsView } from './slots';
import type { Actions, NodeCheck, ClusterNode, ClusterRow } from './types';

/** Maximum number of nodes whose machines are listed; otherwise only a tooltip shows them. */
const WORDY = 8;
const ICONS: Record<string, string> = { local: 'laptop', azureml: 'cloud' };
const UP: ReadonlySet<string> = new Set(['idle', 'busy']);

export type ClusterActions = Pick<Actions, 'removeCluster' | 'checkCluster' | 'refreshCluster'>;

let serial = 0;

export class ClusterView {
  readonly element: HTMLElement;
  readonly #bodyId = `dd-cluster-${(serial += 1)}`;
  readonly #toggle = h('button', { type: 'button', class: 'dd-cluster-toggle', 'aria-controls': this.#bodyId });
  readonly #chevron = h('span', { class: 'dd-chevron dd-sub' }, icon('right', 12));
  readonly #icon = h('span', { class: 'dd-sub' });
  readonly #name = h('span', { class: 'dd-cluster-name dd-b dd-ell' });
  readonly #kind = h('span', { class: 'dd-cluster-kind dd-sub dd-s12' });
  readonly #summary = h('span', { class: 'dd-cluster-summary dd-s12 dd-num dd-ell' });
  readonly #remove: HTMLButtonElement;
  /** Shown below the head even if the cluster is folded: costs are never hidden. */
  readonly #bill = h('div', { class: 'dd-cluster-bill dd-s12 dd-num', hidden: true });
  readonly #machines = h('div', { class: 'dd-s12 dd-sub dd-cluster-machines', hidden: true });
  readonly #machineProblem = h('div', { class: 'dd-cluster-problem dd-s12', hidden: true });
  readonly #problem = h('div', { class: 'dd-cluster-problem dd-s12', hidden: true });
  readonly #nodes = h('ul', { class: 'dd-nodes' });
  readonly #nodeViews: NodeView[] = [];
  readonly #slots = new SlotsView();
  readonly #place = h('div', { class: 'dd-cluster-place' });
  readonly #checks = h('div', { class: 'dd-cluster-place dd-s12' });
  readonly #error = h('div', { class: 'dd-cluster-error dd-s12 dd-ink-err', role: 'alert', hidden: true });
  readonly #body: HTMLElement;
  #cluster: ClusterRow;
  #open: boolean;

  constructor(cluster: ClusterRow, private readonly actions: ClusterActions, open: boolean, private readonly toggled: (open: boolean) => void) {
    this.#cluster = cluster;
    this.#open = open;
    this.#toggle.append(this.#chevron, this.#icon, this.#name, this.#kind);
    const check = tool('completed', __('Check'), () => this.check());
    this.#remove = tool('trash', __('Remove'), () => this.askRemove());
    const buttons = h('span', { class: 'dd-cluster-buttons' }, check, this.#remove);
    const parts = [this.#problem, this.#machineProblem, this.#machines, this.#nodes, this.#slots.element, this.#checks, this.#place, this.#error];
    this.#body = h('div', { id: this.#bodyId, class: 'dd-cluster-body' }, ...parts);
    const head = h('div', { class: 'dd-cluster-head' }, this.#toggle, this.#summary, buttons);
    this.element = h('div', { class: 'dd-cluster', role: 'listitem' }, head, this.#bill, this.#body);
    onClick(this.#toggle, () => this.#press());
    this.update(cluster);
  }

  /** Show a newer state of the cluster. */
  update(cluster: ClusterRow): void {
    this.#cluster = cluster;
    assign(this.element, { 'data-name': cluster.name, 'data-kind': cluster.kind, 'data-named': cluster.named });
    fill(this.#icon, cluster.kind, () => [icon(ICONS[cluster.kind] ?? 'server')]);
    setText(this.#name, cluster.name);
    setText(this.#kind, cluster.named ? cluster.title : cluster.detail || cluster.title);
    assign(this.#toggle, { title: [cluster.name, this.#kind.textContent].filter(Boolean).join(', ') });
    setText(this.#summary, stateWords(cluster) || (cluster.problem ? __('not usable') : cluster.checked ? summary(cluster) : __('loading')));
    this.#summary.classList.toggle('dd-ink-warn', Boolean(cluster.problem) && cluster.machines?.exists !== false);
    this.#drawMachines(cluster);
    this.#slots.update(cluster.in_use);
    show(this.#remove, cluster.named);
    this.#drawBody(cluster);
    this.#drawOpen();
  }

  #drawBody({ problem, remedy, code, nodes, is_remote, machines }: ClusterRow): void {
    // Machines that do not exist yet are not a problem: the command that creates them is shown instead.
    show(this.#problem, Boolean(problem) && machines?.exists !== false);
    fill(this.#problem, `${problem}|${remedy}`, () => [icon('warn', 14, 'dd-ink-warn'), h('span', {}, ...explained(problem, remedy, code))]);
    show(this.#nodes, nodes.length > 0);
    this.#drawNodes(nodes, is_remote && nodes.length <= WORDY);
  }

  /** Show what the machines of a cluster are and cost, or how to create them. */
  #drawMachines(cluster: ClusterRow): void {
    const { name, detail, machines } = cluster;
    const bill = billWords(cluster);
    show(this.#bill, bill !== '');
    fill(this.#bill, bill, () => [icon('warn', 12, 'dd-ink-warn'), h('span', {}, bill)]);
    const kept = machines?.exists ? keptUpWords(machines.min_nodes) : '';
    const text = !machines ? '' : machines.exists ? [detail, kept].filter(Boolean).join('. ') : __('Its machines have not been created yet. Create them with: `distdl clusters compute create %1`', name);
    show(this.#machines, Boolean(machines));
    fill(this.#machines, text, () => quoted(text));
    const problem = machines?.problem ?? '';
    show(this.#machineProblem, problem !== '');
    fill(this.#machineProblem, problem, () => [icon('warn', 14, 'dd-ink-warn'), h('span', {}, ...quoted(problem))]);
  }

  #drawNodes(nodes: readonly ClusterNode[], wordy: boolean): void {
    while (this.#nodeViews.length < nodes.length) {
      const view = new NodeView(() => this.check());
      this.#nodeViews.push(view);
      this.#nodes.append(view.element);
    }
    for (const { element } of this.#nodeViews.splice(nodes.length)) element.remove();
    nodes.forEach((node, at) => this.#nodeViews[at]?.update(node, wordy));
  }

  #press(): void {
    this.#open = !this.#open;
    this.toggled(this.#open);
    this.#drawOpen();
  }

  #drawOpen(): void {
    assign(this.#toggle, { 'aria-expanded': String(this.#open) });
    show(this.#body, this.#open);
  }

  /** Check every node for problems that would prevent a job, and show the results. */
  check(): void {
    const { name } = this.#cluster;
    const view = new CheckView(name, () => this.#checked(name), () => this.#closeChecks());
    this.reveal();
    this.#checks.replaceChildren(view.element);
    void view.run();
    view.focus();
  }

  async #checked(name: string): Promise<NodeCheck[]> {
    try {
      return await this.actions.checkCluster(name);
    } finally {
      void this.actions.refreshCluster(name).catch(() => undefined);
    }
  }

  #closeChecks(): void {
    this.#checks.replaceChildren();
    this.#toggle.focus();
  }

  /** Open or fold it, without that being the user's choice. */
  open(open: boolean): void {
    this.#open = open;
    this.#drawOpen();
  }

  /** Whether any of its nodes costs money now. */
  get billed(): boolean {
    return this.#cluster.billed > 0;
  }

  /** Open the cluster when it is folded. */
  reveal(): void {
    if (!this.#open) this.#press();
  }

  /** Remove the cluster from the list after confirmation. */
  askRemove(): void {
    void this.#removed();
  }

  async #removed(): Promise<void> {
    const { name, nodes, active_jobs, billed } = this.#cluster;
    const costly = billed ? ` ${__('Its machines keep running and cost money. Delete them first.')}` : '';
    const jobs = active_jobs ? ` ${_n('%1 job runs there.', '%1 jobs run there.', active_jobs)}` : '';
    const text = _n('Remove %2 with %1 node from the list?', 'Remove %2 with %1 nodes from the list?', nodes.length, name);
    if (await this.#confirm(`${text}${jobs}${costly}`, __('Remove'))) await this.#do(this.actions.removeCluster(name));
  }

  async #confirm(text: string, yes: string): Promise<boolean> {
    const question = new InlineConfirm(text, yes, __('Keep'));
    this.#ask(question.element);
    question.focus();
    const answer = await question.answered;
    if (this.element.isConnected) this.#toggle.focus();
    return answer;
  }

  #ask(element: HTMLElement): void {
    this.reveal();
    this.#showMessage('');
    this.#place.replaceChildren(element);
  }

  async #do(request: Promise<unknown>): Promise<void> {
    this.#place.replaceChildren();
    this.#showMessage('');
    try {
      await request;
    } catch (error) {
      this.reveal();
      this.#showMessage(error);
    }
  }

  #showMessage(what: unknown): void {
    showMessage(this.#error, what);
  }
}

/** Return the pending operation on a cluster's machines, "" if there is none. */
function stateWords({ machines }: ClusterRow): string {
  if (!machines) return '';
  if (!machines.exists) return __('not created');
  const words: Record<string, string> = { creating: __('being created'), changing: __('being changed'), deleting: __('being deleted') };
  return machines.state && (words[machines.state] ?? machines.state);
}

/** Return how much of a cluster is up or in use: only what was measured. */
export function summary({ nodes, active_jobs, machines, in_use }: ClusterRow): string {
  const working = (count: number): string => (count ? _n('%1 job', '%1 jobs', count) : __('idle'));
  if (in_use) {
    const runs = held(in_use) || working(nodes.flatMap(({ jobs }) => jobs).length);
    return in_use.waiting ? `${runs}, ${__('%1 queued', in_use.waiting)}` : runs;
  }
  const single = nodes.length < 2 && nodes.every(({ state }) => UP.has(state));
  if (single && !machines) return working(active_jobs);
  const up = nodes.filter(({ state }) => UP.has(state));
  const total = Math.max(nodes.length, machines?.max_nodes ?? 0);
  const words = machines ? _n('%2 of %1 node up', '%2 of %1 nodes up', total, up.length) : _n('%2 of %1 node', '%2 of %1 nodes', total, up.length);
  const gpus = sum(nodes);
  if (!gpus) return words;
  const reached = sum(up);
  return `${words}, ${reached === gpus ? _n('%1 GPU', '%1 GPUs', gpus) : _n('%2 of %1 GPU', '%2 of %1 GPUs', gpus, reached)}`;
}

/** Return how many of its GPUs jobs hold, "" of a machine without GPUs. */
function held({ total, free }: NonNullable<ClusterRow['in_use']>): string {
  const gpus = total['gpus'] ?? 0;
  return gpus ? _n('%2 of %1 GPU', '%2 of %1 GPUs', gpus, gpus - (free['gpus'] ?? gpus)) : '';
}

const sum = (nodes: ClusterNode[]): number => nodes.reduce((all, { gpus }) => all + gpus, 0);

function tool(name: string, title: string, action: () => void): HTMLButtonElement {
  return onClick(h('button', { type: 'button', class: 'dd-btn dd-icon dd-quiet', title, 'aria-label': title }, icon(name)), action);
}
