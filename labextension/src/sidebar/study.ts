/**
 * A study in the job list: one row in the place of its newest run, which unfolds. The row itself, whose id is that of the
 * study, is made by the server (`jobs/study_rows.py`). Pure, so that it can be tested without a page.
 */
import { __ } from '../ui/trans';
import type { JobRow } from './types';

/** A row with the moment (epoch seconds) when it was sent; `unfolded` where it is that of a study with runs, `inside` where it is a run of one. */
export interface Item {
  row: JobRow;
  heard: number;
  unfolded?: boolean;
  inside?: boolean;
}

/** Whether a row is that of a study, and none of a job. */
export const isStudy = ({ id, group }: JobRow): boolean => group?.id === id;

/** What a row is called. */
export function titleOf(row: JobRow): string {
  if (!row.group || !isStudy(row)) return row.name;
  return row.group.kind === 'sweep' ? __('Sweep of %1', row.group.name) : __('Scaling of %1', row.group.name);
}

/** What the value of a row is, "" where there is none. */
export function metricOf(row: JobRow): string {
  if (!row.group || !row.metric || !isStudy(row)) return row.metric;
  return row.group.kind === 'sweep' ? __('best %1', row.group.metric) : __('% of ideal');
}

/**
 * Return what is shown of `items`, the jobs and the sweeps that have no trial yet: the rows of studies in the places of their
 * newest runs, with the runs where unfolded. Of jobs those are shown that `passes` lets through, and a study that passes itself
 * or has such a run.
 */
export function grouped(items: readonly Item[], studies: ReadonlyMap<string, JobRow>, unfolded: ReadonlySet<string>, passes: (row: JobRow) => boolean): Item[] {
  const runs = new Map<string, Item[]>();
  for (const item of items) if (item.row.group && !isStudy(item.row)) runs.set(item.row.group.id, [...(runs.get(item.row.group.id) ?? []), item]);
  const shown: Item[] = [];
  for (const item of items) {
    const row = studies.get(item.row.group?.id ?? '');
    const own = row && runs.get(row.id);
    if (!row || !own) {
      if (passes(item.row)) shown.push(item);
    } else if (own[0] === item) {
      const found = own.filter((one) => passes(one.row));
      const open = unfolded.has(row.id);
      if (found.length || passes(row)) shown.push({ row, heard: item.heard, unfolded: open });
      if (open) shown.push(...found.map((one) => ({ ...one, inside: true })));
    }
  }
  return shown;
}

/** How many rows there are that `passes` lets through while all studies are folded: a study is one, whatever its runs. */
export function rowCount(items: readonly Item[], studies: ReadonlyMap<string, JobRow>, passes: (row: JobRow) => boolean): number {
  return grouped(items, studies, new Set(), passes).length;
}
