/** Pieces of text that several parts of a panel write in the same way. */
import { h, type Child } from '../ui/dom';
import { icon } from '../ui/icons';

/** Text of a sentence in which `names` between backticks are set as code. */
export function quoted(text: string): Child[] {
  return text.split('`').map((part, at) => (at % 2 ? h('span', { class: 'dd-mono' }, part) : part));
}

/** A line that opens what lies below it. */
export function folded(label: Node, classes: string, ...inside: Child[]): HTMLElement {
  return h('details', {}, h('summary', { class: `dd-row ${classes}` }, icon('right', 12, 'dd-turnable'), label), ...inside);
}
