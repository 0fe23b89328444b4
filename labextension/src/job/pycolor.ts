/** Colours a line of Python with the editor's own colours, for tracebacks. Good enough for reading; no parser. */
import { h } from '../ui/dom';

const TOKENS = new RegExp(
  [
    '(?<comment>#.*$)',
    '(?<string>[rbfuRBFU]{0,2}(?:"(?:[^"\\\\]|\\\\.)*"?|\'(?:[^\'\\\\]|\\\\.)*\'?))',
    '(?<number>\\b\\d[\\w.]*)',
    '(?<property>(?<=\\.)[A-Za-z_]\\w*)',
    '(?<word>[A-Za-z_]\\w*)',
    '(?<operator>[-+*/%=<>!&|^~@:]+)',
  ].join('|'),
  'g',
);
const KEYWORDS = new Set(
  ('False None True and as assert async await break class continue def del elif else except finally for from global if ' +
    'import in is lambda nonlocal not or pass raise return try while with yield').split(' '),
);

/** Return the line as text and spans. */
export function python(line: string): (Node | string)[] {
  const parts: (Node | string)[] = [];
  let at = 0;
  for (const match of line.matchAll(TOKENS)) {
    if (match.index > at) parts.push(line.slice(at, match.index));
    parts.push(token(match));
    at = match.index + match[0].length;
  }
  parts.push(line.slice(at));
  return parts;
}

function token(match: RegExpMatchArray): Node | string {
  const kind = Object.entries(match.groups ?? {}).find(([, text]) => text !== undefined)?.[0] ?? 'word';
  if (kind !== 'word') return h('span', { class: `dd-py-${kind}` }, match[0]);
  return KEYWORDS.has(match[0]) ? h('span', { class: 'dd-py-keyword' }, match[0]) : match[0];
}
