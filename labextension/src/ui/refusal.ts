/**
 * Why something that was asked for was not done, as views show it: the sentence with its remedy, and a link to its entry
 * in the documentation where a site is known. It knows nothing of who refused.
 */
import { fill, h, show, type Child } from './dom';
import { icon } from './icons';
import { __, english } from './trans';

/** One sentence and, when there is one, the remedy and the field that it is about. */
export class Refusal extends Error {
  constructor(message: string, readonly hint = '', readonly field = '') {
    super(message);
  }
}

/** Return the sentence with its remedy. */
export function sentences(error: unknown): string {
  return error instanceof Refusal ? [error.message, error.hint].filter(Boolean).join(' ') : error instanceof Error ? error.message : String(error);
}

/** On the page itself, as in `trans.ts`: the widgets are built with a copy of this module of their own. */
const KEY = Symbol.for('distdl-jupyter.docs');
const page = globalThis as { [KEY]?: string };
/** A sentence is found by its words, so that a longer one may be cut. */
const LONG = 1000;

/** Say where the documentation is; anything but an http or https address is none. */
export function setDocs(address: unknown): void {
  page[KEY] = typeof address === 'string' && /^https?:\/\/[^\s]+$/i.test(address) ? address.replace(/\/+$/, '') : '';
}

/** Whether it was said where the documentation is, or that it is nowhere. */
export const knowsDocs = (): boolean => page[KEY] !== undefined;

/** Return the address of a sentence's entry, "" without a site. The sentence is a fragment, which no server is sent. */
export function helpAddress(sentence: string): string {
  if (!page[KEY] || !sentence) return '';
  return `${page[KEY]}/reference/troubleshooting.html#says=${encodeURIComponent(english(sentence).slice(0, LONG))}`;
}

/** Return the link to a sentence's entry, null without a site. */
export function help(sentence: string): HTMLAnchorElement | null {
  const href = helpAddress(sentence);
  return href ? h('a', { class: 'dd-help', href, target: '_blank', rel: 'noopener noreferrer', title: __('What to do'), 'aria-label': __('What to do') }, icon('help', 14)) : null;
}

/** Return a sentence of Python, or what was thrown, as it is shown: with its remedy and the link to its entry. */
export function explained(what: unknown, remedy = ''): Child[] {
  const known = typeof what === 'string' || what instanceof Refusal;
  const link = known ? help(typeof what === 'string' ? what : what.message) : null;
  const text = [sentences(what), remedy].filter(Boolean).join(' ');
  return link ? [text, ' ', link] : [text];
}

/** Show what was thrown, or a page's own words as they are; hide the line for "". */
export function say(line: HTMLElement, what: unknown): void {
  const own = typeof what === 'string';
  fill(line, own ? what : `!${sentences(what)}`, () => (own ? [what] : explained(what)));
  show(line, what !== '');
}
