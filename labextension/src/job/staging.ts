/** Data on its way to the nodes of a job: a bar for each source and node, with bytes, files and what a cache had. */
import type { StagingBar } from './card';
import { assign, h, setText, show } from '../ui/dom';
import { __, _n } from '../ui/trans';
import { bytes, count, percent } from '../ui/format';

/** Maximum number of bars of single nodes; more are added up by source. */
const MOST = 8;

export class Staging {
  readonly root = h('div', { class: 'dd-staging', role: 'group', 'aria-label': __('Copying data'), hidden: true });
  #rows: Row[] = [];

  /** Show how far the sources are. */
  update(nodes: StagingBar[]): void {
    const bars = nodes.length > MOST ? addedUp(nodes) : nodes;
    show(this.root, bars.length > 0);
    while (this.#rows.length < bars.length) {
      const row = new Row();
      this.#rows.push(row);
      this.root.append(...row.parts);
    }
    for (const row of this.#rows.splice(bars.length)) for (const part of row.parts) part.remove();
    this.#rows.forEach((row, at) => bars[at] && row.draw(bars[at]));
  }
}

class Row {
  readonly #name = h('span', { class: 'dd-ell' });
  readonly #fill = h('i');
  readonly #bar = h('div', { class: 'dd-bar', role: 'progressbar', 'aria-valuemin': 0, 'aria-valuemax': 100 }, this.#fill);
  readonly #share = h('span', { class: 'dd-num' });
  readonly #words = h('span', { class: 'dd-num dd-sub dd-ell' });
  readonly parts: HTMLElement[] = [this.#name, this.#bar, this.#share, this.#words];

  draw(bar: StagingBar): void {
    const name = [bar.source, bar.host].filter(Boolean).join(' · ');
    const part = bar.total ? Math.min(1, bar.done / bar.total) : 1;
    const words = wordsOf(bar).join(' · ');
    setText(this.#name, name);
    assign(this.#name, { title: name });
    setText(this.#share, percent(bar.total ? bar.done : 1, bar.total || 1));
    setText(this.#words, words);
    assign(this.#words, { title: words });
    this.#fill.style.width = `${(100 * part).toFixed(1)}%`;
    assign(this.#bar, { 'aria-valuenow': Math.round(100 * part), 'aria-valuetext': words, 'aria-label': name });
  }
}

function wordsOf(bar: StagingBar): string[] {
  const words = [__('%1 of %2', bytes(bar.done), bytes(bar.total))];
  if (bar.of > 1) words.push(__('%1 of %2', count(bar.files), _n('%1 file', '%1 files', bar.of)));
  if (bar.cached) words.push(__('%1 from the cache', bytes(bar.cached)));
  return words;
}

function addedUp(bars: StagingBar[]): StagingBar[] {
  const sums = new Map<string, StagingBar & { nodes: number }>();
  for (const bar of bars) {
    const sum = sums.get(bar.source);
    if (!sum) sums.set(bar.source, { ...bar, nodes: 1 });
    else {
      for (const field of ['done', 'total', 'files', 'of', 'cached'] as const) sum[field] += bar[field];
      sum.nodes += 1;
    }
  }
  return [...sums.values()].map((sum) => ({ ...sum, host: _n('%1 node', '%1 nodes', sum.nodes) }));
}
