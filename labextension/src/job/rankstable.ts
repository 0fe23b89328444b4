/** Table of the ranks of a job: host, progress and result of each. Columns without data are omitted. */
import { fill, h, onClick, setText, show, type Child } from '../ui/dom';
import type { RankRow, Used } from './jobview';
import { amount, type Resources } from './resources';
import { __, _n } from '../ui/trans';
import { bytes, count, number, percent, rankWord } from '../ui/format';

/** Maximum number of ranks shown in full; of more, only the `SOME` most important until the user expands the table. */
const ALL = 16;
const SOME = 8;
/** Fraction of the limit from which memory is orange. */
const NEARLY = 0.9;

export class RanksTable {
  #ranks: RankRow[] = [];
  #odd: number[] = [];
  #whole = false;
  #used: Used | null = null;
  readonly #count = h('span', { class: 'dd-sub dd-s12' });
  readonly #more = h('button', { type: 'button', class: 'dd-link dd-s12' });
  readonly #table = h('div', { class: 'dd-tablebox' });

  constructor(private readonly root: HTMLElement) {
    root.classList.add('dd-ranks');
    const head = h('div', { class: 'dd-part' }, h('h3', { class: 'dd-h3' }, __('Ranks')), this.#count, h('span', { class: 'dd-grow' }), this.#more);
    root.append(head, this.#table);
    onClick(this.#more, () => {
      this.#whole = !this.#whole;
      this.update(this.#ranks, false, this.#odd);
    });
  }

  /** Show resource use and throughput of the ranks; rows of ranks with a problem are highlighted. */
  use(used: Used): void {
    this.#used = used;
    this.update(this.#ranks, false, this.#odd);
  }

  /**
   * Show the ranks. `stopped` is set if the job was canceled: then a rank that exits has not failed. `odd` are the ranks that
   * differ from the others while the job makes no progress.
   */
  update(rows: RankRow[], stopped = false, odd: number[] = []): void {
    const ranks = stopped ? rows.map((row) => (row.status === 'failed' ? { ...row, status: 'ended' as const } : row)) : rows;
    this.#ranks = ranks;
    this.#odd = odd;
    show(this.root, ranks.length > 0);
    setText(this.#count, counts(ranks));
    show(this.#more, ranks.length > ALL);
    setText(this.#more, this.#whole ? __('Show fewer') : _n('Show all %1 rank', 'Show all %1 ranks', ranks.length));
    const used = usage(this.#used);
    const slow = [...used.values()].flatMap((use) => (use.slow || use.marked ? [use.rank] : []));
    const shown = this.#whole || ranks.length <= ALL ? ranks : mostImportant(ranks, [...odd, ...slow]);
    fill(this.#table, JSON.stringify([shown, odd, [...used.values()]]), () => [table(shown, odd, used)]);
  }
}

/** Return the most important ranks: first failed, then differing, then those with the least progress. */
function mostImportant(ranks: RankRow[], odd: number[]): RankRow[] {
  const order = (row: RankRow): [number, number] => [row.status === 'failed' ? 0 : odd.includes(row.rank) ? 1 : 2, row.last_step ?? -1];
  return [...ranks].sort((a, b) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1] || a.rank - b.rank).slice(0, SOME);
}

function counts(ranks: RankRow[]): string {
  const countOf = (status: RankRow['status']): number => ranks.filter((row) => row.status === status).length;
  const present = (['failed', 'ready', 'compiling', 'started', 'waiting', 'ended'] as const).filter(countOf);
  return present.map((status) => `${count(countOf(status))} ${rankWord(status)}`).join(', ');
}

interface Column {
  title: string;
  number: boolean;
  cell(row: RankRow): Child;
}

type Sample = Resources['samples'][number];
type Measured = Partial<Sample['ranks'][string]> & { rank: number; machine?: Sample['machine'] };
type Use = Measured & { left: number | null; limit: number | null; network: number | null; rate: number | null; slow: boolean; marked: boolean };

/** Return resource use and throughput per rank, with memory and network of its machine. */
function usage(used: Used | null): Map<number, Use> {
  const { samples = [], marks = [], time = null } = used ?? {};
  const sampled: Measured[] = samples.flatMap(({ machine, ranks }) => Object.entries(ranks).map(([rank, use]) => ({ ...use, rank: Number(rank), machine })));
  const known: Measured[] = sampled.length ? sampled : (time?.ranks ?? []).map(({ rank }) => ({ rank }));
  const times = new Map((time?.ranks ?? []).map((steps) => [steps.rank, steps]));
  const noted = new Set(marks.map(({ rank }) => rank));
  return new Map(
    known.map((rank) => {
      const { memory = null, limit = null, received = null, sent = null } = rank.machine ?? {};
      const left = memory === null || limit === null ? null : Math.max(0, limit - memory);
      const network = received === null && sent === null ? null : (received ?? 0) + (sent ?? 0);
      const steps = times.get(rank.rank);
      const rate = steps?.samples && steps.seconds ? steps.samples / (steps.steps * steps.seconds) : null;
      return [rank.rank, { ...rank, left, limit, network, rate, slow: time?.straggler?.rank === rank.rank, marked: noted.has(rank.rank) }];
    }),
  );
}

/** Return a bar of a value relative to its limit, with the value beside it. */
function bar(value: number | null | undefined, limit: number | null | undefined): Child {
  if (value === null || value === undefined) return '';
  const part = limit ? Math.min(1, value / limit) : 0;
  const track = h('span', { class: part >= NEARLY ? 'dd-usebar dd-odd' : 'dd-usebar', style: `--part: ${(100 * part).toFixed(1)}%` });
  return h('span', { class: 'dd-row' }, limit === null ? null : track, bytes(value));
}

/** Return the free memory of the rank's machine; from 90 % use it is a warning tag. */
function leftCell({ left, limit }: Use): Child {
  if (left === null || limit === null) return '';
  const used = 1 - left / limit;
  return used < NEARLY ? h('span', { class: 'dd-sub dd-nw' }, __('%1 left', bytes(left))) : h('span', { class: 'dd-tag dd-tag-warn dd-nw' }, __('%1, %2 left', percent(used, 1), bytes(left)));
}

function useColumns(rows: RankRow[], used: Map<number, Use>): (Column | false)[] {
  const of = (cell: (use: Use) => Child) => (row: RankRow): Child => {
    const use = used.get(row.rank);
    return use ? cell(use) : '';
  };
  const has = (part: (use: Use) => unknown): boolean => rows.some((row) => (part(used.get(row.rank) ?? ({} as Use)) ?? null) !== null);
  const format = (name: string, value: number | null | undefined): string => (value === null || value === undefined ? '' : amount(name, value));
  return [
    has(({ rate }) => rate) && { title: __('Samples/s'), number: true, cell: of(({ rate }) => (rate === null ? '' : number(Number(rate.toPrecision(3))))) },
    has(({ gpu }) => gpu) && { title: __('GPU busy'), number: true, cell: of(({ gpu }) => format('gpu', gpu)) },
    has((use) => use.gpu_memory) && { title: __('GPU memory'), number: false, cell: of((use) => bar(use.gpu_memory, use.gpu_limit)) },
    has((use) => use.torch_allocated) && { title: __('Tensors on GPU'), number: true, cell: of(({ torch_allocated }) => format('torch_allocated', torch_allocated)) },
    has(({ power }) => power) && { title: __('Power'), number: true, cell: of(({ power }) => format('power', power)) },
    has(({ cpu }) => cpu) && { title: __('CPU'), number: true, cell: of(({ cpu }) => format('cpu', cpu)) },
    has(({ memory }) => memory) && { title: __('Memory'), number: false, cell: of(({ memory, limit }) => bar(memory, limit)) },
    has(({ left }) => left) && { title: '', number: false, cell: of(leftCell) },
    has(({ network }) => network) && { title: __('Network'), number: true, cell: of(({ network }) => format('network', network)) },
  ];
}

/** Return the columns that have a value for at least one rank. */
function columns(rows: RankRow[], odd: number[], used: Map<number, Use>): Column[] {
  const has = (part: (row: RankRow) => unknown): boolean => rows.some((row) => part(row) !== null && part(row) !== '');
  const all: (Column | false)[] = [
    { title: __('Rank'), number: false, cell: rankCell },
    has((row) => row.host) && { title: __('Host'), number: false, cell: (row) => row.host },
    { title: __('State'), number: false, cell: (row) => stateCell(row, odd.includes(row.rank), used.get(row.rank)?.slow ?? false) },
    has((row) => row.pid) && { title: __('PID'), number: true, cell: (row) => (row.pid === null ? '' : String(row.pid)) },
    has((row) => row.gpu) && { title: __('GPU'), number: true, cell: (row) => (row.gpu === null ? '' : String(row.gpu)) },
    has((row) => row.last_step) && { title: __('Last step'), number: true, cell: (row) => (row.last_step === null ? '' : count(row.last_step)) },
    ...useColumns(rows, used),
    { title: __('Lines'), number: true, cell: (row) => count(row.lines) },
    { title: __('On stderr'), number: true, cell: (row) => (row.error_lines ? h('span', { class: 'dd-tag dd-tag-warn dd-num' }, count(row.error_lines)) : '0') },
  ];
  return all.filter((column): column is Column => column !== false);
}

function rankCell({ rank }: RankRow): HTMLElement {
  return h('span', { class: 'dd-row' }, h('i', { class: `dd-swatch dd-rank-${rank % 4}${rank % 8 > 3 ? ' dd-rank-dashed' : ''}` }), h('b', {}, String(rank)));
}

function stateCell({ status, how }: RankRow, odd: boolean, slow: boolean): HTMLElement {
  const mark = h('i', { class: odd ? 'dd-dot dd-odd' : 'dd-dot', 'data-status': status });
  if (odd) return h('span', { class: 'dd-row dd-ink-warn' }, mark, __('differs from the others'));
  const tag = slow ? h('span', { class: 'dd-tag dd-tag-warn' }, __('slow')) : null;
  return h('span', { class: `dd-row ${status === 'failed' ? 'dd-ink-err' : ''}` }, mark, how ? `${rankWord(status)}, ${how}` : rankWord(status), tag);
}

function table(rows: RankRow[], odd: number[], used: Map<number, Use>): HTMLElement {
  const shown = columns(rows, odd, used);
  const align = ({ number }: Column): { class: string } => ({ class: number ? 'dd-right' : '' });
  const head = h('tr', {}, ...shown.map((column) => h('th', { scope: 'col', ...align(column) }, column.title)));
  const body = rows.map((row) => h('tr', { class: row.status === 'failed' ? 'dd-bad' : odd.includes(row.rank) || used.get(row.rank)?.marked || used.get(row.rank)?.slow ? 'dd-oddrow' : '' }, ...shown.map((column) => h('td', align(column), column.cell(row)))));
  return h('table', { class: 'dd-grid' }, h('thead', {}, head), h('tbody', {}, ...body));
}
