/** Banner for a server that does not respond: the time of the shown values and of the next retry. */
import { h, onClick, setText, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { clock, duration, unquoted } from '../ui/format';
import type { Connection } from './types';

export class Banner {
  readonly element: HTMLElement;
  readonly #title = h('span', { class: 'dd-b dd-grow' });
  readonly #text = h('div', { class: 'dd-s12 dd-num' });

  constructor(retry: () => void) {
    const button = onClick(h('button', { type: 'button', class: 'dd-btn dd-small' }, __('Try now')), retry);
    const head = h('div', { class: 'dd-row', role: 'alert' }, icon('warn', 16, 'dd-ink-warn'), this.#title, button);
    this.element = h('div', { class: 'dd-sidebar-banner', hidden: true }, head, this.#text);
  }

  update({ state, retry, heard, problem }: Connection, now: number): void {
    show(this.element, state === 'down');
    if (state !== 'down') return;
    setText(this.#title, problem ? __('No live values') : __('Server not responding'));
    const left = retry === null ? 0 : Math.ceil(retry - now);
    const next = left > 0 ? __('Next try in %1.', duration(left)) : __('Trying now.');
    const shown = heard === null ? '' : __('Shown: %1.', clock(heard));
    setText(this.#text, [unquoted(problem) || __('Jobs keep running.'), next, shown].filter(Boolean).join(' '));
  }
}
