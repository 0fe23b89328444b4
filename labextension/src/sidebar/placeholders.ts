/** Placeholders of an empty job list: how to start, loading, or no match. */
import { h, onClick, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';

/** The widths of the grey bars, in px: first line and second line of a row. */
const BARS: readonly (readonly [number, number])[] = [[120, 168], [88, 140], [132, 120]];

/** Return grey bars in the places of rows, for the time until the first answer. */
export function waiting(): HTMLElement {
  const bar = (classes: string, width: number | null): HTMLElement => {
    const element = h('i', { class: classes });
    if (width !== null) element.style.width = `${width}px`;
    return element;
  };
  const rows = BARS.map(([first, second]) =>
    h('div', { class: 'dd-job dd-job-waiting' }, bar('dd-wait-mark', null), bar('dd-wait-name', first), bar('dd-wait-line', second), bar('dd-wait-spark', null), bar('dd-wait-value', null)),
  );
  return h('div', { class: 'dd-waiting', 'aria-hidden': 'true', hidden: true }, ...rows);
}

/** Return the placeholder before the first job: what to type, and buttons to start. */
export function nothingYet(newJob: () => void, quickstart: (() => void) | null): HTMLElement {
  const begin = onClick(h('button', { type: 'button', class: 'dd-btn dd-primary' }, icon('plus'), __('New job')), newJob);
  const show_ = quickstart && onClick(h('button', { type: 'button', class: 'dd-btn' }, __('Open quickstart')), quickstart);
  const code = h('code', { class: 'dd-nothing-code dd-mono' }, h('span', {}, '%%distributed'), ' -p 2');
  return h(
    'div',
    { class: 'dd-nothing', hidden: true },
    h('div', { class: 'dd-b' }, __('No jobs yet')),
    h('div', { class: 'dd-sub dd-s12' }, __('Add this line at the top of a training cell and run it:')),
    code,
    h('div', { class: 'dd-nothing-buttons' }, begin, show_),
  );
}

/** Placeholder for a search or filter without matches. */
export class NothingFound {
  readonly element: HTMLElement;
  readonly #text = h('span', { class: 'dd-sub dd-grow' });

  constructor(reset: () => void) {
    const button = onClick(h('button', { type: 'button', class: 'dd-link' }, __('Show all')), reset);
    this.element = h('div', { class: 'dd-row dd-s12 dd-none-found', hidden: true }, this.#text, button);
  }

  update(shown: boolean, words: readonly string[]): void {
    show(this.element, shown);
    if (!shown) return;
    const text = words.length ? __('No jobs match “%1”.', words.join(' ')) : __('No jobs in this state.');
    if (this.#text.textContent !== text) this.#text.textContent = text;
  }
}
