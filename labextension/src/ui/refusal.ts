/**
 * Why something that was asked for was not done, as views show it: the sentence with its remedy, and a link to its entry
 * in the documentation where a site is known. It knows nothing of who refused.
 */
import { fill, h, quoted, show, type Child } from './dom';
import { icon } from './icons';
import { __ } from './trans';

/** One sentence and, when there are any, the remedy, the field that it is about and the code of its entry in the documentation. */
export class Refusal extends Error {
  constructor(message: string, readonly hint = '', readonly field = '', readonly code = '') {
    super(message);
  }
}

/** Return the sentence with its remedy. */
export function sentences(error: unknown): string {
  return error instanceof Refusal ? [error.message, error.hint].filter(Boolean).join(' ') : error instanceof Error ? error.message : String(error);
}

let docs = '';

/** Say where the documentation is; anything but an http or https address is none. */
export function setDocs(address: unknown): void {
  docs = typeof address === 'string' && /^https?:\/\/[^\s]+$/i.test(address) ? address.replace(/\/+$/, '') : '';
}

/** Return the address of the entry of a code, "" without a site or a code. */
export function helpAddress(code: string): string {
  return docs && code ? `${docs}/reference/troubleshooting.html#${encodeURIComponent(code)}` : '';
}

/** Return the link to the entry of a code, null without a site or a code. */
export function help(code: string): HTMLAnchorElement | null {
  const href = helpAddress(code);
  return href ? h('a', { class: 'dd-help', href, target: '_blank', rel: 'noopener noreferrer', title: __('What to do'), 'aria-label': __('What to do') }, icon('help', 14)) : null;
}

/** Return a sentence of Python, or what was thrown, as it is shown: with its remedy and the link to the entry of its code. */
export function explained(what: unknown, remedy = '', code = ''): Child[] {
  const link = help(what instanceof Refusal ? what.code : code);
  const text = quoted([sentences(what), remedy].filter(Boolean).join(' '));
  return link ? [...text, ' ', link] : text;
}

/** Show a sentence, or what was thrown with its remedy and help link; hide the line for "". */
export function say(line: HTMLElement, what: unknown): void {
  const own = typeof what === 'string';
  fill(line, own ? what : `!${sentences(what)}`, () => (own ? quoted(what) : explained(what)));
  show(line, what !== '');
}
