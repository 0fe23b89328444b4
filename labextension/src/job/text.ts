/** A part that several parts of a panel draw in the same way. */
import { h, type Child } from '../ui/dom';
import { icon } from '../ui/icons';

/** A line that opens what lies below it. */
export function folded(label: Node, classes: string, ...inside: Child[]): HTMLElement {
  return h('details', {}, h('summary', { class: `dd-row ${classes}` }, icon('right', 12, 'dd-turnable'), label), ...inside);
}
