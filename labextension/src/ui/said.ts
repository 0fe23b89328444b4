/**
 * What Python says, in the language of the page: the package's code holds plain English sentences, and a catalogue has
 * them with `%1`, `%2`, ... for what was put in (labextension/sentences.py). A sentence is found by the text around that.
 *
 * Whatever no catalogue has stays as it is, also in the middle of a text: names, numbers and paths.
 */

/** The keys of messages under which sentences stand, and those below which none does. */
const SENTENCES = new Set(['action', 'detail', 'headline', 'help', 'hint', 'how', 'label', 'note', 'notes', 'problem', 'quota', 'reason', 'remedy', 'restriction', 'says', 'successor_reason', 'summary', 'text', 'title', 'warning', 'what', 'why', 'words']);
const NONE = new Set(['code', 'data', 'layout', 'source', 'traceback', 'chosen']);
/** Longer texts are no sentences of ours, and so many are remembered. */
const [LONG, KNOWN] = [2000, 5000];
/** Letters of a text without its values: one with fewer would be found in too many others, so its values are numbers. */
const LETTERS = 5;

/** Values that are nothing but grammar of an English sentence. */
const GRAMMAR = /^(?:is|are|was|were|has|have|had|do|does|did|it|them|its|their|a|an|the|e?s)$/;

const values = /%%|%\d+/g;
const escaped = (text: string): string => text.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&');

interface Template {
  readonly text: string;
  /** Made when it is first used: there are more than a thousand. */
  pattern: RegExp | null;
  readonly translation: string;
  readonly letters: number;
}

export class Sentences {
  readonly #exact = new Map<string, string>();
  readonly #templates: Template[] = [];
  readonly #known = new Map<string, string>();
  readonly #english = new Map<string, string>();

  /** `catalogue` has for each text its translations, as JupyterLab's catalogues do. */
  constructor(catalogue: Readonly<Record<string, unknown>>) {
    for (const [text, forms] of Object.entries(catalogue)) {
      const translation: unknown = Array.isArray(forms) ? forms[0] : undefined;
      if (!text || typeof translation !== 'string') continue;
      if (!/%\d/.test(text)) this.#exact.set(text.replaceAll('%%', '%'), translation.replaceAll('%%', '%'));
      else {
        const letters = text.replace(values, '').replace(/\P{L}/gu, '').length;
        if (letters > 0) this.#templates.push({ text, pattern: null, translation, letters });
      }
    }
    this.#templates.sort((a, b) => b.letters - a.letters);
  }

  /** Return a sentence, or several, in this language; the text itself where it is none of the catalogue. */
  said(text: string): string {
    if (text.length > LONG || !/[a-z]/i.test(text)) return text;
    let found = this.#known.get(text);
    if (found === undefined) {
      const parts = text.split(/(?<=[.!?]) (?=["'`]?\p{Lu})/u);
      const each = parts.map((part) => this.#whole(part));
      found = each.every((part) => part !== null) ? each.join('') : (this.#whole(text) ?? parts.map((part, at) => each[at] ?? `${this.#list(part)} `).join('').trimEnd());
      if (this.#known.size >= KNOWN) {
        this.#known.clear();
        this.#english.clear();
      }
      this.#known.set(text, found);
      this.#english.set(found, text);
    }
    return found;
  }

  /** Return what Python said where `said` has returned this text lately; else the text itself. */
  english(text: string): string {
    return this.#english.get(text) ?? text;
  }

  /** Return a list of phrases with each phrase in this language, as far as it is known. */
  #list(text: string): string {
    const end = text.endsWith('.') ? '.' : '';
    return text.slice(0, text.length - end.length).split(/([,;:] )/).map((part) => this.#whole(part) ?? part).join('') + end;
  }

  #whole(text: string): string | null {
    const exact = this.#exact.get(text);
    if (exact !== undefined) return exact;
    for (const template of this.#templates) {
      template.pattern ??= pattern(template.text, template.letters < LETTERS ? '\\d[^,]*?' : '.*?');
      const match = template.pattern.exec(text);
      // What stands in the place of a value may be a sentence too.
      if (match) return filled(template.translation, match.groups ?? {}, (value) => (value === text ? value : this.said(value)));
    }
    return null;
  }
}

/** Return what finds a text with its values in their places, each by its number and each a `value`. */
function pattern(text: string, value: string): RegExp {
  const seen = new Set<string>();
  let [made, at] = ['', 0];
  for (const match of text.matchAll(values)) {
    made += escaped(text.slice(at, match.index));
    const name = `v${match[0].slice(1)}`;
    at = match.index + match[0].length;
    // Of two values side by side the second is an addition, or nothing.
    const any = /^%\d/.test(text.slice(at)) ? '.+' : value;
    made += match[0] === '%%' ? '%' : seen.has(name) ? `\\k<${name}>` : `(?<${name}>${any})`;
    seen.add(name);
  }
  return new RegExp(`^${made}${escaped(text.slice(at))}$`, 'su');
}

function filled(text: string, found: Readonly<Record<string, string>>, said: (value: string) => string): string {
  const value = (mark: string): string => (found[`v${mark.slice(1)}`] ?? mark).replace(GRAMMAR, '');
  return text.replace(values, (mark) => (mark === '%%' ? '%' : said(value(mark)))).replace(/（\s*）| \(\s*\)/g, '').trim();
}

/** Return a message with its sentences as `said` has them. */
export function spoken<T>(message: T, said: (text: string) => string): T {
  const walk = (value: unknown, sentence: boolean): unknown => {
    if (typeof value === 'string') return sentence ? said(value) : value;
    if (Array.isArray(value)) return sentence || isOfObjects(value) ? value.map((one) => walk(one, sentence)) : value;
    if (typeof value !== 'object' || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, NONE.has(key) ? one : walk(one, SENTENCES.has(key))]));
  };
  return walk(message, false) as T;
}

/** Whether a list may hold sentences; those of numbers, names or rows of a log do not, and are long. */
function isOfObjects(list: readonly unknown[]): boolean {
  return typeof list[0] === 'object' && !Array.isArray(list[0]);
}
