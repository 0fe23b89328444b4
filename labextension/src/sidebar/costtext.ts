/** What nodes cost, in words: only what is known. */
import { __, _n } from '../ui/trans';
import type { ClusterRow } from './types';

/** Return an amount: "1.05 USD". */
export const money = (amount: number, currency: string): string => `${amount.toFixed(2)} ${currency}`.trim();

export type Bill = Pick<ClusterRow, 'billed' | 'cost_per_hour' | 'currency'>;

/** Return how many nodes cost money now and how much, "" when none does. */
export function billWords({ billed, cost_per_hour, currency }: Bill): string {
  if (!billed) return '';
  const nodes = _n('%1 node is up and costs money', '%1 nodes are up and cost money', billed);
  const price = cost_per_hour === null ? __('price unknown') : __('%1/h', money(cost_per_hour, currency));
  return `${nodes}: ${price}`;
}

/** Return the bill of several clusters together; the cost only where it is known of all, in one currency. */
export function total(bills: readonly Bill[]): Bill {
  const some = bills.filter(({ billed }) => billed > 0);
  const currencies = new Set(some.map(({ currency }) => currency));
  const known = currencies.size === 1 && some.every(({ cost_per_hour }) => cost_per_hour !== null);
  const billed = some.reduce((all, one) => all + one.billed, 0);
  const cost = known ? some.reduce((all, one) => all + (one.cost_per_hour ?? 0), 0) : null;
  return { billed, cost_per_hour: cost, currency: known ? [...currencies][0] ?? '' : '' };
}

/** Return the warning about nodes that stay up without a job, "" when none does. */
export function keptUpWords(nodes: number): string {
  return nodes > 0 ? _n('%1 node keeps running and costs money even without a job.', '%1 nodes keep running and cost money even without a job.', nodes) : '';
}
