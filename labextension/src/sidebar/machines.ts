/** The part of a cluster that makes, scales and ends its machines, and says what they cost. Made once, changed in place. */
import { fill, h, onClick, quoted, setText, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import { MachineForm } from './machineform';
import { billWords, keptUpWords } from './costtext';
import type { Actions, Cluster } from './types';

export type MachineActions = Pick<Actions, 'kinds' | 'choices' | 'forecast' | 'createMachines' | 'deleteMachines' | 'scaleCluster'>;

/** Where a cluster asks and answers. */
export interface Stage {
  ask(element: HTMLElement, focus: HTMLElement | null): void;
  confirm(text: string, yes: string): Promise<boolean>;
  run(request: Promise<unknown>): Promise<void>;
  say(text: string): void;
  clear(): void;
}

export class MachinesView {
  /** Shown below the head even if the cluster is folded: costs are never hidden. */
  readonly bill = h('div', { class: 'dd-cluster-bill dd-s12 dd-num', hidden: true });
  /** Shown above the nodes. */
  readonly element: HTMLElement;
  readonly #text = h('span', { class: 'dd-sub' });
  readonly #make: HTMLButtonElement;
  readonly #problem = h('div', { class: 'dd-cluster-problem dd-s12', hidden: true });
  #cluster: Cluster;

  constructor(cluster: Cluster, private readonly actions: MachineActions, private readonly stage: Stage) {
    this.#cluster = cluster;
    this.#make = onClick(h('button', { type: 'button', class: 'dd-link dd-s12' }, __('Create machines')), () => void stage.run(this.create()));
    this.element = h('div', { class: 'dd-s12 dd-cluster-machines', hidden: true }, this.#text, ' ', this.#make);
  }

  get problem(): HTMLElement {
    return this.#problem;
  }

  update(cluster: Cluster): void {
    this.#cluster = cluster;
    const { machines } = cluster;
    const words = billWords(cluster);
    show(this.bill, words !== '');
    fill(this.bill, words, () => [icon('warn', 12, 'dd-ink-warn'), h('span', {}, words)]);
    const kept = machines?.exists ? keptUpWords(machines.min_nodes) : '';
    setText(this.#text, machines?.exists ? [cluster.detail, kept].filter(Boolean).join('. ') : __('Its machines have not been created yet.'));
    show(this.#make, machines?.exists === false);
    show(this.element, Boolean(machines));
    show(this.#problem, Boolean(machines?.problem));
    fill(this.#problem, machines?.problem ?? '', () => [icon('warn', 14, 'dd-ink-warn'), h('span', {}, ...quoted(machines?.problem ?? ''))]);
  }

  /** Ask what machines to make. */
  async create(): Promise<void> {
    const { name, kind, options } = this.#cluster;
    const plugins = await this.actions.kinds();
    const form = new MachineForm(name, plugins.find((one) => one.name === kind)?.wanted, {
      choices: (field) => this.actions.choices(kind, field, options),
      forecast: (wanted) => this.actions.forecast(name, wanted),
      create: (wanted) => this.actions.createMachines(name, wanted),
      closed: () => this.stage.clear(),
    });
    this.stage.ask(form.element, null);
    form.focus();
  }

  /** Ask how many nodes may be up, and how many stay up. */
  scale(): void {
    const { machines } = this.#cluster;
    if (!machines) return;
    const most = number(__('Maximum nodes'), machines.max_nodes, 1);
    const least = number(__('Minimum nodes'), machines.min_nodes, 0);
    const warning = h('div', { class: 'dd-ink-warn', role: 'status', hidden: true });
    const go = h('button', { type: 'submit', class: 'dd-btn dd-small' }, __('Scale'));
    const close = onClick(h('button', { type: 'button', class: 'dd-btn dd-small' }, __('Close')), () => this.stage.clear());
    const fields = [labelled(__('Maximum nodes'), most), labelled(__('Minimum nodes'), least)];
    const form = h('form', { class: 'dd-s12 dd-scale-form', novalidate: true }, ...fields, warning, h('div', { class: 'dd-row' }, go, close));
    least.addEventListener('input', () => {
      setText(warning, keptUpWords(Number(least.value) || 0));
      show(warning, warning.textContent !== '');
    });
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      void this.#scaleTo(Number(most.value), Number(least.value));
    });
    form.addEventListener('keydown', (event) => event.key === 'Escape' && this.stage.clear());
    this.stage.ask(form, most);
    most.select();
  }

  async #scaleTo(most: number, least: number): Promise<void> {
    if (!Number.isInteger(most) || most < 1 || !Number.isInteger(least) || least < 0 || least > most) {
      this.stage.say(__('Enter integers: a maximum of at least 1, and a minimum that does not exceed it.'));
      return;
    }
    const { name, machines } = this.#cluster;
    const warning = least > (machines?.min_nodes ?? 0) ? keptUpWords(least) : '';
    if (warning && !(await this.stage.confirm(warning, __('Keep them running')))) return;
    await this.stage.run(this.actions.scaleCluster(name, most, least));
  }

  /** Ask whether to end the machines, and do it. */
  async remove(): Promise<void> {
    const { name, nodes } = this.#cluster;
    const up = nodes.length ? ` ${_n('%1 node is up.', '%1 nodes are up.', nodes.length)}` : '';
    const text = `${__('Delete the machines of %1? The name stays in the list.', name)}${up}`;
    if (await this.stage.confirm(text, __('Delete'))) await this.stage.run(this.actions.deleteMachines(name));
  }
}

function number(label: string, value: number, min: number): HTMLInputElement {
  return h('input', { type: 'number', class: 'dd-input', min, value, 'aria-label': label });
}

function labelled(text: string, input: HTMLElement): HTMLElement {
  return h('div', { class: 'dd-row' }, h('span', { class: 'dd-sub dd-grow' }, text), input);
}
