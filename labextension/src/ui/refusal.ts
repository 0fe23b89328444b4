/**
 * Errors as views show them: the message with its remedy, and a link to its entry in the documentation if a site is
 * configured.
 */
import { fill, h, quoted, show, type Child } from './dom';
import { icon } from './icons';
import { __ } from './trans';

/** An error with an optional remedy, the field it refers to, and the code of its entry in the documentation. */
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

/** Set the URL of the documentation; anything but an http or https URL is ignored. */
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

/** Return a message or an error as elements, with its remedy and the link to the entry of its code. */
export function explained(what: unknown, remedy = '', code = ''): Child[] {
  const link = help(what instanceof Refusal ? what.code : code);
  const text = quoted([sentences(what), remedy].filter(Boolean).join(' '));
  return link ? [...text, ' ', link] : text;
}

/** Show a message, or an error with its remedy and help link; hide the line for "". */
export function showMessage(line: HTMLElement, what: unknown): void {
  const isText = typeof what === 'string';
  fill(line, isText ? what : `!${sentences(what)}`, () => (isText ? quoted(what) : explained(what)));
  show(line, what !== '');
}
