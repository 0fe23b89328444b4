/**
 * The bar over the curve: the metrics with their newest values (picker and read-out in one), how the ranks are drawn,
 * the scale, the table view and the zoom.
 */
import { arrowKeys, assign, fill, h, onClick, setText, show } from '../ui/dom';
import { button } from './header';
import { __ } from '../ui/trans';

export interface Choice {
  metric: string;
  mode: 'band' | 'ranks';
  log: boolean;
}

export interface Metric {
  name: string;
  /** The newest mean over ranks, written for reading. */
  value: string;
}

/** A row of the table view: step, mean, lowest (rank), highest (rank), written for reading. */
export type TableRow = [string, string, string, string];

export class Picker {
  #metrics: Metric[] = [];
  #choice: Choice = { metric: '', mode: 'band', log: false };
  readonly #tabs = h('div', { class: 'dd-metrics', role: 'tablist', 'aria-label': __('Metric') });
  readonly #log = h('button', { type: 'button', title: __('Logarithmic scale') }, 'Log');
  readonly #band = h('button', { type: 'button', role: 'radio', title: __('Mean of the ranks with lowest to highest') }, __('Band'));
  readonly #ranks = h('button', { type: 'button', role: 'radio', title: __('One line per rank') }, __('Each rank'));
  readonly #modes = h('span', { class: 'dd-seg', role: 'radiogroup', 'aria-label': __('Show') }, this.#band, this.#ranks);
  readonly #tableButton = button('table', __('Table'), 'dd-quiet dd-icon');
  readonly #zoomButton = button('zoom', __('Zoom'), 'dd-quiet dd-icon');
  readonly #table = h('div', { class: 'dd-table', tabindex: 0, role: 'region', 'aria-label': __('Values as a table'), hidden: true });

  constructor(root: HTMLElement, private readonly choose: (choice: Choice) => void, private readonly zoom: (on: boolean) => void, private readonly panel: string) {
    root.classList.add('dd-picker');
    const scale = h('span', { class: 'dd-seg' }, this.#log);
    const controls = h('span', { class: 'dd-row dd-curve-controls' }, scale, this.#modes, this.#tableButton, this.#zoomButton);
    root.append(h('div', { class: 'dd-part' }, this.#tabs, controls), this.#table);
    this.#connect();
  }

  #connect(): void {
    onClick(this.#log, () => this.#set({ log: !this.#choice.log }));
    onClick(this.#band, () => this.#set({ mode: 'band' }));
    onClick(this.#ranks, () => this.#set({ mode: 'ranks' }));
    onClick(this.#tableButton, () => this.#toggleTable());
    onClick(this.#zoomButton, () => this.zoom(press(this.#zoomButton)));
    arrowKeys(this.#modes, () => [this.#band, this.#ranks], (item) => item.click());
    arrowKeys(this.#tabs, () => [...this.#tabs.children] as HTMLElement[], (item) => item.click());
  }

  #set(part: Partial<Choice>): void {
    this.#choice = { ...this.#choice, ...part };
    this.#draw();
    this.choose(this.#choice);
  }

  /** Show the metrics, the selection, and the rank options if there are several ranks. */
  update(metrics: Metric[], choice: Choice, severalRanks: boolean): void {
    this.#metrics = metrics;
    this.#choice = choice;
    show(this.#modes, severalRanks);
    this.#draw();
  }

  #draw(): void {
    const { metric, mode, log } = this.#choice;
    fill(this.#tabs, JSON.stringify(this.#metrics.map(({ name }) => name)), () => this.#metrics.map(({ name }) => this.#tab(name)));
    this.#metrics.forEach(({ name, value }, at) => {
      const tab = this.#tabs.children[at];
      if (!tab) return;
      if (tab.lastElementChild) setText(tab.lastElementChild, value);
      assign(tab, { 'aria-selected': String(name === metric), tabindex: name === metric ? 0 : -1 });
    });
    mark(this.#log, log, 'aria-pressed');
    mark(this.#band, mode === 'band', 'aria-checked');
    mark(this.#ranks, mode === 'ranks', 'aria-checked');
    assign(this.#band, { tabindex: mode === 'band' ? 0 : -1 });
    assign(this.#ranks, { tabindex: mode === 'ranks' ? 0 : -1 });
  }

  #tab(name: string): HTMLElement {
    const tab = h('button', { type: 'button', role: 'tab', title: name, 'aria-controls': this.panel }, h('span', { class: 'dd-k dd-ell' }, name), h('span', { class: 'dd-v dd-num' }));
    return onClick(tab, () => {
      this.#set({ metric: name });
    });
  }

  #toggleTable(): void {
    show(this.#table, press(this.#tableButton));
  }

  /** Show the same curve as a table of a few rows. */
  table(rows: TableRow[]): void {
    const head = h('tr', {}, ...['step', 'mean', 'lowest (rank)', 'highest (rank)'].map((text) => h('th', { scope: 'col' }, text)));
    fill(this.#table, JSON.stringify(rows), () => [
      h('table', {}, h('thead', {}, head), h('tbody', {}, ...rows.map((row) => h('tr', {}, ...row.map((text) => h('td', {}, text)))))),
    ]);
  }
}

function mark(element: HTMLElement, on: boolean, attribute: string): void {
  element.classList.toggle('dd-on', on);
  element.setAttribute(attribute, String(on));
}

/** Toggle a button and return whether it is on. */
function press(element: HTMLElement): boolean {
  const on = element.getAttribute('aria-pressed') !== 'true';
  mark(element, on, 'aria-pressed');
  return on;
}
