/** What of a job does not stream: its spec, the code of its cell, the names that travelled with it, the files it wrote. */
import { copy } from '../ui/clipboard';
import { h, onClick, type Child } from '../ui/dom';
import { button } from './header';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import { python } from './pycolor';
import type { components } from '../api/schema';
import { bytes, clock, count, number, pastDay, TRACKERS } from '../ui/format';

export type CheckpointRow = components['schemas']['CheckpointRow'];
export type TrackerRecord = components['schemas']['TrackerRecord'];
export type JobDetail = components['schemas']['JobDetail'];

/** A file that a job wrote: its path in the job's folder, bytes, epoch seconds. */
export type OutputFile = components['schemas']['OutputFile'];

/** The spec as rows, with the code and the versions of what it ran on. */
export function specPart(detail: JobDetail): HTMLElement[] {
  const rows = detail.spec.map(({ field, label, value }) => [h('dt', { title: field }, label), h('dd', {}, value)]);
  const versions = Object.entries(detail.versions).map(([name, version]) => [h('dt', { class: 'dd-mono' }, name), h('dd', { class: 'dd-mono' }, version)]);
  return [
    box(__('Spec'), null, h('dl', { class: 'dd-facts' }, ...rows.flat())),
    ...(detail.source.code || detail.source.command ? [codeBox(detail)] : []),
    ...(versions.length ? [box(__('Versions'), null, h('dl', { class: 'dd-facts' }, ...versions.flat()))] : []),
  ];
}

function codeBox(detail: JobDetail): HTMLElement {
  const { code, command, execution_count: number, first_line: first, notebook } = detail.source;
  const file = notebook.split('/').at(-1) ?? '';
  const cell = number === null ? __('Code') : file ? __('Cell [%1] in %2', number, file) : __('Cell [%1]', number);
  const press = button('copy', __('Copy code'), 'dd-quiet dd-icon');
  onClick(press, () => void copy([command, code].filter(Boolean).join('\n'), press));
  // A magic is the line above the code; a call is somewhere else.
  const magic = command ? [h('div', { class: 'dd-line' }, h('span'), h('span', {}, command.startsWith('%%') && first > 1 ? String(first - 1) : ''), h('span', {}, command))] : [];
  const lines = code.replace(/\n$/, '').split('\n').map((text, at) => codeLine(text, first + at));
  return box(cell, press, h('div', { class: 'dd-lines dd-code', tabindex: 0, role: 'region', 'aria-label': cell }, ...magic, ...lines));
}

function codeLine(text: string, number: number): HTMLElement {
  return h('div', { class: 'dd-line' }, h('span'), h('span', {}, String(number)), h('span', {}, ...python(text)));
}

/** The captured variables, largest first. */
export function capturedPart({ captured }: JobDetail): HTMLElement[] {
  if (!captured.length) return [empty(__('Nothing was captured: the code uses no variables of the notebook.'))];
  const rows = [...captured].sort((a, b) => b.size - a.size).map(({ name, kind, detail, size }) => [
    h('span', { class: 'dd-mono' }, name), kind, detail, bytes(size),
  ]);
  const total = captured.reduce((sum, one) => sum + one.size, 0);
  const summary = h('span', { class: 'dd-sub dd-s12' }, `${_n('%1 name', '%1 names', captured.length)}, ${bytes(total)}`);
  return [box(__('Captured names'), summary, grid([__('Name'), __('Kind'), __('Details'), __('Size')], rows))];
}

/** Checkpoints of the job: `fork` starts a new job from one. */
export function checkpointsPart(checkpoints: CheckpointRow[], fork: (path: string) => Promise<void>): HTMLElement[] {
  if (!checkpoints.length) return [];
  const now = Date.now() / 1000;
  const metrics = [...new Set(checkpoints.flatMap(({ metrics: reported }) => Object.keys(reported)))];
  const value = (of: CheckpointRow, name: string): string => (name in of.metrics ? number(of.metrics[name] ?? NaN) : '');
  const rows = checkpoints.map((one) => [
    stepWords(one), ...metrics.map((name) => value(one, name)), bytes(one.size), when(one.modified, now),
    h('div', { class: 'dd-mono dd-wrap' }, one.path), h('span', { class: 'dd-row' }, forkButton(one.path, fork), loadButton(one)),
  ]);
  const summary = h('span', { class: 'dd-sub dd-s12' }, _n('%1 checkpoint', '%1 checkpoints', checkpoints.length));
  return [box(__('Checkpoints'), summary, grid([__('Step'), ...metrics, __('Size'), __('Written'), __('Checkpoint'), ''], rows, metrics.length + 1))];
}

/** The job's run in each experiment tracker, with a link to its page. */
export function trackersPart(trackers: TrackerRecord[]): HTMLElement[] {
  if (!trackers.length) return [];
  const rows = trackers.map((one) => [
    titleOf(one), h('div', { class: 'dd-mono dd-wrap' }, one.run), h('div', { class: 'dd-wrap' }, one.location),
    one.trouble ? h('div', { class: 'dd-ink-warn dd-wrap' }, one.trouble) : one.done ? __('Complete') : __('Being written'), trackerLink(one),
  ]);
  return [box(__('Tracking'), null, grid([__('Tracker'), __('Run'), __('Where'), __('State'), ''], rows))];
}

const titleOf = ({ tracker }: TrackerRecord): string => TRACKERS.find(([name]) => name === tracker)?.[1] ?? tracker;

function trackerLink(record: TrackerRecord): Child {
  return /^https?:/.test(record.url) && h('a', { class: 'dd-link', href: record.url, target: '_blank', rel: 'noopener noreferrer' }, __('Open %1', titleOf(record)));
}

function stepWords({ step, is_named: named }: CheckpointRow): string {
  if (step === null) return '';
  return named ? count(step) : __('about %1', count(step));
}

function forkButton(path: string, fork: (path: string) => Promise<void>): HTMLElement {
  const press = button('resume', __('Fork'), 'dd-small');
  press.title = __('Start a new job that resumes from this checkpoint');
  onClick(press, () => {
    press.disabled = true;
    void fork(path).finally(() => (press.disabled = false));
  });
  return press;
}

function loadButton({ load }: CheckpointRow): HTMLElement {
  const press = button('copy', __('Copy code'), 'dd-small dd-quiet');
  press.title = load;
  onClick(press, () => void copy(load, press));
  return press;
}

/** The files that a job wrote, each to be downloaded from `address`. */
export function outputsPart(files: OutputFile[], address: (path: string) => string): HTMLElement[] {
  if (!files.length) return [empty(__('No files yet. What a rank writes into the folder $DISTDL_JOB_DIR/outputs is kept here.'))];
  const now = Date.now() / 1000;
  const rows = files.map(({ path, size, modified }) => [fileLink(path, address(path)), bytes(size), when(modified, now)]);
  const total = files.reduce((sum, one) => sum + one.size, 0);
  const summary = h('span', { class: 'dd-sub dd-s12' }, `${_n('%1 file', '%1 files', files.length)}, ${bytes(total)}`);
  return [box(__('Outputs'), summary, grid([__('File'), __('Size'), __('Written')], rows))];
}

function fileLink(path: string, address: string): HTMLElement {
  const name = path.split('/').at(-1) ?? path;
  return h('a', { class: 'dd-link dd-row dd-file', href: address, download: name, title: __('Download %1', path) }, icon('download', 14), h('span', { class: 'dd-mono dd-wrap' }, path));
}

function when(moment: number, now: number): string {
  return [pastDay(moment, now), clock(moment)].filter(Boolean).join(', ');
}

/** A titled box of a page. */
export function box(title: string, more: Child, ...inside: Child[]): HTMLElement {
  return h('section', { class: 'dd-box' }, h('div', { class: 'dd-part dd-low' }, h('h3', { class: 'dd-h3' }, title), h('span', { class: 'dd-grow' }), more), ...inside);
}

/** One sentence where there is nothing to show. */
export function empty(text: string): HTMLElement {
  return h('p', { class: 'dd-empty dd-sub' }, text);
}

/** A table; sizes, and the `numbers` first columns, are aligned to the right. */
function grid(titles: string[], rows: Child[][], numbers = 0): HTMLElement {
  const look = (at: number): { class: string } => ({ class: at < numbers || titles[at] === __('Size') ? 'dd-right dd-num' : '' });
  const head = h('tr', {}, ...titles.map((title, at) => h('th', { scope: 'col', ...look(at) }, title)));
  const body = rows.map((row) => h('tr', {}, ...row.map((cell, at) => h('td', look(at), cell))));
  return h('div', { class: 'dd-tablebox' }, h('table', { class: 'dd-grid' }, h('thead', {}, head), h('tbody', {}, ...body)));
}
