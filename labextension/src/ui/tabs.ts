/** Tabs of a page and their panels: one is seen at a time; the arrow keys go from one to the next. */
import { arrowKeys, assign, h, onClick, show } from './dom';

export interface Tab {
  key: string;
  word: string;
}

let pages = 0;

export class Tabs {
  readonly bar = h('div', { class: 'dd-pagetabs', role: 'tablist' });
  #chosen = '';
  readonly #page = `dd-page-${(pages += 1)}`;

  /** `panels` holds for each tab the elements that it shows; an element may belong to several tabs. */
  constructor(
    private readonly tabs: readonly Tab[],
    private readonly panels: Readonly<Record<string, readonly HTMLElement[]>>,
    private readonly chosen: (key: string) => void,
  ) {
    [...new Set(Object.values(panels).flat())].forEach((panel, at) => (panel.id ||= `${this.#page}-panel-${at}`));
    for (const { key, word } of tabs) {
      const shows = (panels[key] ?? []).map(({ id }) => id).join(' ');
      const tab = h('button', { type: 'button', role: 'tab', id: `${this.#page}-${key}`, 'data-tab': key, 'aria-controls': shows || null }, h('span', { 'data-word': word }, word));
      this.bar.append(onClick(tab, () => this.choose(key)));
    }
    arrowKeys(this.bar, () => [...this.bar.children] as HTMLElement[], (item) => item.click());
  }

  get current(): string {
    return this.#chosen;
  }

  /** Show a tab's panels and hide the others. */
  choose(key: string): void {
    if (!this.tabs.some((tab) => tab.key === key)) return;
    this.#chosen = key;
    for (const tab of this.bar.children) {
      const on = tab.getAttribute('data-tab') === key;
      assign(tab, { 'aria-selected': String(on), tabindex: on ? 0 : -1 });
    }
    const shown = new Set(this.panels[key]);
    for (const panel of new Set(Object.values(this.panels).flat())) show(panel, shown.has(panel));
    for (const panel of shown) assign(panel, { role: 'tabpanel', 'aria-labelledby': `${this.#page}-${key}` });
    this.chosen(key);
  }
}
