/** Text of a row in the job list: pure functions, so that tests need no page. */
import { __, _n } from '../ui/trans';
import { ENDED, ago, clock, count, duration, number, pastDay, percent, ranAndWaited, shortId, shownState, spans, stateWord, unquoted, type State } from '../ui/format';
import { isStudy, metricOf, titleOf } from './study';
import type { JobRow } from './types';

/** The second line: where the job runs, its main status (`strong` is bold), and optional detail. */
export interface Line {
  place: string;
  strong: string;
  tell: string;
  more: string;
  tone: 'plain' | 'failed' | 'lost' | 'stalled';
}

const SETUP: ReadonlySet<State> = new Set(['queued', 'preparing', 'starting']);
const DAY = 86_400;

const status = (row: JobRow): string => unquoted(row.message);

export const isActive = (row: JobRow): boolean => !ENDED.has(row.state);

/** Return the progress between 0 and 1, or null if it is unknown. */
export function share(row: JobRow): number | null {
  return row.total && row.done !== null ? Math.max(0, Math.min(1, row.done / row.total)) : null;
}

/**
 * Return the second line of a row at the moment `now`; `received` is when the row arrived (the time left counts down from
 * there), and `stale` is set if the server no longer responds.
 */
export function secondLine(row: JobRow, now: number, received: number, stale: boolean): Line {
  if (isStudy(row)) return studyLine(row, now);
  const place = `${row.compute_target}, ${row.node_count} × ${row.process_count_per_node}`;
  const line = (text: string, more: Partial<Line> = {}): Line => ({ place, strong: '', tell: text, more: '', tone: 'plain', ...more });
  if (row.state === 'queued' && row.queue !== null) {
    const [needs = '', ...holders] = status(row).split(', ');
    return line(needs, { place: '', more: holders.join(', ') });
  }
  if (row.stalled && !stale && shownState(row.state, true) === 'stalled') return line(status(row), { place: '', tone: 'stalled' });
  if (SETUP.has(row.state)) return line(status(row) || stateWord(row.state).toLowerCase());
  if (row.state === 'running') return runningLine(row, now, received, stale, line);
  if (row.state === 'canceling') return line(__('canceling'));
  const when = moment(row.ended ?? row.last_sign, now);
  if (row.state === 'completed') return line(`${elapsedText(row, row.ended ?? now)}, ${when}`);
  // The status of a canceled trial has the reason and its metric; other runs of a study are canceled after measurement.
  if (row.state === 'canceled' && row.group?.kind === 'sweep') return line(status(row) || __('canceled'));
  if (row.state === 'canceled') return line((row.group?.value ?? null) === null ? canceledText(row) : __('measured'));
  const why = row.state === 'lost' ? status(row).replace(/\. .*/s, '') : status(row);
  const what = why || (row.state === 'failed' ? __('failed') : __('no result'));
  return line(what.replace(/\.$/, ''), { place: '', more: when, tone: row.state === 'failed' ? 'failed' : 'lost' });
}

function runningLine(row: JobRow, now: number, received: number, stale: boolean, line: (text: string, more?: Partial<Line>) => Line): Line {
  const strong = row.total && row.done !== null ? percent(row.done, row.total) : '';
  if (stale) return line(strong ? __('%1 at %2', strong, clock(received)) : __('running at %1', clock(received)));
  const left = row.remaining === null ? '' : __('%1 left', duration(Math.max(0, row.remaining - (now - received))));
  if (strong) return line(left, { strong });
  if (row.done !== null) return line(__('%1 done', count(row.done)));
  // Persistent ranks report the cell that they run.
  return line(status(row) || (row.value === null ? __('running') : __('%1 elapsed', duration(spans(row, now).ran))));
}

/** Return how many runs of a study are measured, and its status or end time. */
function studyLine(row: JobRow, now: number): Line {
  const place = row.group?.kind === 'sweep' ? __('%1 of %2 trials', row.done ?? 0, row.total ?? 0) : __('%1 of %2 measured', row.done ?? 0, row.total ?? 0);
  const ended = status(row) || stateWord(row.state).toLowerCase();
  const tell = row.state === 'running' ? status(row) || row.compute_target : row.state === 'completed' ? moment(row.ended ?? row.last_sign, now) : ended;
  return { place, strong: '', tell, more: '', tone: row.state === 'failed' || row.state === 'lost' ? row.state : 'plain' };
}

function canceledText(row: JobRow): string {
  return row.total && row.done !== null ? __('canceled at %1', percent(row.done, row.total)) : __('canceled');
}

/** Return the line as one text. */
export function lineText(line: Line): string {
  return [line.place, line.strong, line.tell, line.more].filter(Boolean).join(', ');
}

/** Return a time relative to now: "16 min ago", "yesterday 12:04", "20 Nov 12:04". */
export function moment(then: number, now: number): string {
  if (now - then < DAY / 2) return ago(Math.max(0, now - then));
  const [day, today] = [new Date(then * 1000), new Date(now * 1000)];
  const time = clock(then).slice(0, 5);
  if (day.toDateString() === today.toDateString()) return ago(now - then);
  const before = new Date(today.getFullYear(), today.getMonth(), today.getDate() - 1);
  if (day.toDateString() === before.toDateString()) return __('yesterday %1', time);
  return `${pastDay(then, now)} ${time}`;
}

/** Return the number at the right and its label: the newest value of the metric, else the elapsed time. */
export function figure(row: JobRow, now: number): { value: string; label: string } {
  if (row.state === 'queued' && row.queue?.position) return { value: String(row.queue.position), label: __('position') };
  if (row.value !== null) return { value: number(row.value), label: metricOf(row) };
  const { ran, waited } = spans(row, now);
  if (row.queued_since !== null && waited) return { value: brief(waited), label: __('waiting') };
  if (isActive(row)) return { value: brief(ran), label: __('elapsed') };
  return { value: '', label: '' };
}

/** Return how long a job ran and was queued. */
function elapsedText(row: JobRow, end: number): string {
  const { ran, waited } = spans(row, end);
  return waited ? ranAndWaited(ran, waited) : duration(ran);
}

/** Return a duration in its largest unit, for a narrow column: "4 s", "12 min". */
function brief(seconds: number): string {
  const unit = seconds >= DAY ? DAY : seconds >= 3600 ? 3600 : seconds >= 60 ? 60 : 1;
  return duration(Math.floor(Math.max(0, seconds) / unit) * unit);
}

/** Return the screen reader label of a row, without seconds, which would be announced on every tick. */
export function spoken(row: JobRow, { place, strong, tell, more }: Line): string {
  const value = row.value === null ? '' : `${metricOf(row)} ${number(row.value)}`;
  return [`${titleOf(row)} ${shortId(row.id)}`, stateWord(shownState(row.state, row.stalled)), place, strong || tell, more, value].filter(Boolean).join(', ');
}

/** Return whether canceling a job needs confirmation: an older job has work to lose. */
export function asksBeforeCancel(row: JobRow, now: number, setting: 'minute' | 'always' | 'never'): boolean {
  if (setting !== 'minute') return setting === 'always';
  return now - row.created >= 60;
}

/** Return whether a row contains every word of a search. */
export function matches(row: JobRow, terms: readonly string[]): boolean {
  if (!terms.length) return true;
  const text = [titleOf(row), row.id, row.state, stateWord(shownState(row.state, row.stalled)), row.compute_target, row.backend, row.notebook, status(row)].join('\n').toLowerCase();
  return terms.every((term) => text.includes(term));
}

export type Filter = 'all' | 'active' | 'queued' | 'failed';

/** Return whether a row passes a filter. */
export function passes(row: JobRow, filter: Filter): boolean {
  if (filter === 'active') return isActive(row);
  return filter === 'all' || row.state === filter;
}

/** Return the count of shown jobs: "3 of 8 jobs". */
export function found(shown: number, total: number): string {
  return shown === total ? _n('%1 job', '%1 jobs', total) : _n('%2 of %1 job', '%2 of %1 jobs', total, shown);
}
