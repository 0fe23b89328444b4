/** What jobs hold of this machine: a box for each GPU with the job's name, a bar for its cores and one for its memory. */
import { fill, h, show } from '../ui/dom';
import { bytes } from '../ui/format';
import { __, _n } from '../ui/trans';
import type { ClusterRow } from './types';

type MachineUse = NonNullable<ClusterRow['in_use']>;

/** Maximum number of GPUs with a box each; more are shown as a bar. */
const BOXES = 8;

export class SlotsView {
  readonly element = h('div', { class: 'dd-slots dd-s12', hidden: true });
  readonly #gpus = h('div', { class: 'dd-slot-boxes', role: 'list', 'aria-label': __('GPUs') });
  readonly #bars = h('div', { class: 'dd-slot-bars' });

  constructor() {
    this.element.append(this.#gpus, this.#bars);
  }

  /** Show resource use; a machine without GPUs and without running or queued jobs shows nothing. */
  update(use: MachineUse | null): void {
    const gpus = use?.total['gpus'] ?? 0;
    show(this.element, use !== null && (gpus > 0 || use.holding.length > 0 || use.waiting > 0));
    if (!use) return;
    show(this.#gpus, gpus > 0 && gpus <= BOXES);
    fill(this.#gpus, JSON.stringify([gpus, use.holding]), () => (gpus <= BOXES ? boxes(gpus, use) : []));
    fill(this.#bars, JSON.stringify([use.total, use.free]), () => [
      ...(gpus > BOXES ? [bar(gpus - (use.free['gpus'] ?? gpus), gpus, (held) => _n('%2 of %1 GPU', '%2 of %1 GPUs', gpus, held))] : []),
      ...amounts(use, 'cores', (held, total) => _n('%2 of %1 core', '%2 of %1 cores', total, held)),
      ...amounts(use, 'memory', (held, total) => __('%1 of %2', bytes(held), bytes(total))),
    ]);
  }
}

function boxes(count: number, { holding }: MachineUse): HTMLElement[] {
  const names = new Map(holding.flatMap((one) => one.gpus.map((gpu) => [gpu, one.user ? __('%1 of %2', one.name, one.user) : one.name])));
  return Array.from({ length: count }, (_, gpu) => {
    const name = names.get(String(gpu));
    const words = [h('span', { class: 'dd-sub' }, __('GPU %1', gpu)), h('span', { class: 'dd-b dd-ell', title: name ?? null }, name ?? __('free'))];
    return h('div', { class: 'dd-slot', role: 'listitem', 'data-held': String(name !== undefined) }, ...words);
  });
}

function amounts(use: MachineUse, name: string, words: (held: number, total: number) => string): HTMLElement[] {
  const total = use.total[name];
  return total ? [bar(total - (use.free[name] ?? total), total, (held) => words(held, total))] : [];
}

function bar(held: number, total: number, words: (held: number) => string): HTMLElement {
  const fillWidth = Math.max(0, Math.min(100, (held / total) * 100));
  const track = h('span', { class: 'dd-slot-track', 'aria-hidden': 'true' }, h('span', { style: `width: ${fillWidth}%` }));
  return h('span', { class: 'dd-slot-bar' }, track, h('span', { class: 'dd-num' }, words(held)));
}
