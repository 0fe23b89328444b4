/**
 * The words of the views in the language of the page, with the names that gettext gives them.
 *
 * The views are also drawn outside JupyterLab, so nothing of `@jupyterlab` is imported here: JupyterLab's translator is
 * passed once to `setBundle`; before that, and elsewhere, the English text of the source is shown.
 * The names `__` and `_n` are those that `npm run catalogues` looks for, with literal strings only.
 */

/** The part of `TranslationBundle` of `@jupyterlab/translation` that is used. */
export interface Bundle {
  __(text: string, ...values: Value[]): string;
  _n(one: string, many: string, n: number, ...values: Value[]): string;
}

export type Value = string | number;

let bundle: Bundle | null = null;

/** Show texts in the language of `next` from now on; null is English. Texts of Python are English in every language. */
export function setBundle(next: Bundle | null): void {
  bundle = next;
}

/** Return a text in the page's language, `%1`, `%2`, ... replaced by the values. */
export function __(text: string, ...values: Value[]): string {
  return bundle ? bundle.__(text, ...values) : filled(text, values);
}

/** Return the form of a text that fits the number `n`, which is `%1`; more values are `%2`, `%3`, ... */
export function _n(one: string, many: string, n: number, ...values: Value[]): string {
  return bundle ? bundle._n(one, many, n, ...values) : filled(n === 1 ? one : many, [n, ...values]);
}

/** Return the text with each `%k` replaced by the k-th value and `%%` by `%`, as JupyterLab's translator does it. */
function filled(text: string, values: Value[]): string {
  return text.replace(/%(%|\d+)/g, (mark, what: string) => (what === '%' ? what : String(values[Number(what) - 1] ?? mark)));
}
