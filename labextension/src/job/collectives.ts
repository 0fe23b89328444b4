/** The last collective operation of each rank as a table: in the notice of a stall, a failure and above the stacks. */
import type { Collective } from './card';
import { h } from '../ui/dom';
import { __ } from '../ui/trans';
import { count, rankSpans } from '../ui/format';

/** Return the table, null for no rows. */
export function collectivesTable(rows: Collective[]): HTMLElement | null {
  if (!rows.length) return null;
  const titles = [__('Ranks'), __('Last collective operation'), __('Number'), __('Sizes'), __('State'), __('Line')];
  const head = h('tr', {}, ...titles.map((title) => h('th', { scope: 'col' }, title)));
  const body = rows.map((row) => h('tr', {}, ...cells(row).map((text) => h('td', {}, text))));
  return h('div', { class: 'dd-table dd-collectives dd-s12' }, h('table', {}, h('thead', {}, head), h('tbody', {}, ...body)));
}

function cells({ ranks, operation, caller, group, number, sizes, dtype, state, line }: Collective): string[] {
  const title = caller ? `${operation} (${caller})` : operation;
  const numbered = number === null ? '' : count(number);
  const grouped = group === '' || group === 'default' ? numbered : __('%1 of group %2', numbered, group);
  return [rankSpans(ranks), title || __('none'), grouped, `${sizes} ${dtype}`.trim(), stateWord(state), line];
}

function stateWord(state: string): string {
  const words: Record<string, string> = {
    waiting: __('waiting'), done: __('done'), finished: __('finished'), failed: __('failed'), raised: __('raised an exception'), ended: __('ended'),
  };
  return words[state] ?? state;
}
