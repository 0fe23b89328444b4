/**
 * The runs of a study as one row of the job list, which unfolds: pure, so that it can be tested without a page.
 *
 * The row of a study is made of its runs' rows: it has the study's id, how many of its parts are measured, and of a scaling
 * study the efficiency of the most processes.
 */
import { __ } from '../ui/trans';
import { ENDED } from '../ui/format';
import type { JobRow } from './types';

/** A row with the moment (epoch seconds) when it was sent; `unfolded` where it is a study's, `inside` where it is a run of one. */
export interface Item {
  row: JobRow;
  heard: number;
  unfolded?: boolean;
  inside?: boolean;
}

/** Seconds after a run in which the next one may still come. */
const NEXT = 8;

/** Whether a row is that of a study, and none of a job. */
export const isStudy = ({ id, group }: JobRow): boolean => group?.id === id;

/** Return what is shown of `items`: the rows of studies in the places of their newest runs, with the runs where unfolded. */
export function grouped(items: readonly Item[], unfolded: ReadonlySet<string>, now: number): Item[] {
  const runs = new Map<string, Item[]>();
  for (const item of items) if (item.row.group) runs.set(item.row.group.id, [...(runs.get(item.row.group.id) ?? []), item]);
  const shown: Item[] = [];
  for (const item of items) {
    const id = item.row.group?.id;
    const own = id === undefined ? undefined : runs.get(id);
    if (id === undefined || !own) shown.push(item);
    else if (own[0] === item) {
      const open = unfolded.has(id);
      shown.push({ row: studyRow(own.map(({ row }) => row), now), heard: item.heard, unfolded: open });
      if (open) shown.push(...own.map((one) => ({ ...one, inside: true })));
    }
  }
  return shown;
}

/** Return the row of a study of its runs, the newest first. */
export function studyRow(rows: readonly JobRow[], now: number): JobRow {
  const newest = rows[0] as JobRow;
  const group = newest.group as NonNullable<JobRow['group']>;
  if (group.kind === 'sweep') return sweepRow(rows, newest, group, now);
  const means = meansOf(rows);
  const share = efficiency(means);
  const state = stateOf(newest, means.size >= group.size, now);
  return {
    ...newest,
    id: group.id,
    name: group.kind === 'scale' ? __('Scaling of %1', group.name) : group.name,
    state,
    created: rows.at(-1)?.created ?? newest.created,
    ended: state === 'running' ? null : newest.ended,
    done: Math.min(means.size, group.size),
    total: group.size,
    left: null,
    metric: share === null ? '' : __('% of ideal'),
    value: share === null ? null : Math.round(100 * share),
    spark: [],
    can_rerun: false,
    can_resume: false,
    stalled: false,
  };
}

/** The reason of a trial's end when its sweep is stopped (`core/sweep.py`): it is run again when the sweep goes on. */
const STOPPED = 'The sweep was stopped.';

/** Return the row of a sweep: how many trials have ended, and the best value of those that completed. */
function sweepRow(rows: readonly JobRow[], newest: JobRow, group: NonNullable<JobRow['group']>, now: number): JobRow {
  const ended = rows.filter(({ state, says }) => ENDED.has(state) && state !== 'lost' && !(state === 'canceled' && says === STOPPED));
  const values = rows.flatMap(({ state, group: own }) => (state === 'completed' && own?.value !== null && own?.value !== undefined ? [own.value] : []));
  const goesOn = rows.some(({ state }) => !ENDED.has(state)) || (ended.length < group.size && now - (newest.ended ?? now) < NEXT);
  const done = ended.length >= group.size;
  const state = goesOn ? 'running' : !done ? 'canceled' : values.length ? 'completed' : 'failed';
  return {
    ...newest,
    id: group.id,
    name: __('Sweep of %1', group.name),
    state,
    says: '',
    created: rows.at(-1)?.created ?? newest.created,
    ended: goesOn ? null : newest.ended,
    done: Math.min(ended.length, group.size),
    total: group.size,
    left: null,
    metric: values.length ? __('best %1', group.metric) : '',
    value: values.length ? (group.maximize ? Math.max(...values) : Math.min(...values)) : null,
    spark: [],
    place: null,
    can_rerun: false,
    can_resume: false,
    stalled: false,
  };
}

interface Mean {
  backend: string;
  processes: number;
  rate: number;
}

/** The mean of each part of which a run was measured, in the order in which they were run. */
function meansOf(rows: readonly JobRow[]): Map<string, Mean> {
  const rates = new Map<string, { row: JobRow; values: number[] }>();
  for (const row of [...rows].reverse()) {
    const value = row.group?.value ?? null;
    const key = `${row.backend} ${row.node_count * row.process_count_per_node}`;
    if (value !== null) rates.set(key, { row, values: [...(rates.get(key)?.values ?? []), value] });
  }
  const mean = (values: number[]): number => values.reduce((sum, one) => sum + one, 0) / values.length;
  return new Map([...rates].map(([key, { row, values }]) => [key, { backend: row.backend, processes: row.node_count * row.process_count_per_node, rate: mean(values) }]));
}

/** The rate of each process of the most as a share of that of the fewest, of the first backend; null with one number only. */
function efficiency(means: Map<string, Mean>): number | null {
  const every = [...means.values()];
  const own = every.filter(({ backend }) => backend === every[0]?.backend).sort((a, b) => a.processes - b.processes);
  const [first, last] = [own[0], own.at(-1)];
  if (!first || !last || first === last) return null;
  return last.rate / last.processes / (first.rate / first.processes);
}

function stateOf(newest: JobRow, complete: boolean, now: number): JobRow['state'] {
  if (!ENDED.has(newest.state)) return 'running';
  if (newest.state === 'failed' || newest.state === 'lost') return newest.state;
  if (now - (newest.ended ?? now) < NEXT && !complete) return 'running';
  return complete ? 'completed' : newest.state === 'completed' && newest.group?.value === null ? 'failed' : 'canceled';
}
