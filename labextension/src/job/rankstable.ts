/** The ranks of a job as a table: where each runs, how far it is, how it ended. Only what was reported is shown. */
import { fill, h, onClick, setText, show, type Child } from '../ui/dom';
import type { RankRow } from './jobview';
import { __, _n } from '../ui/trans';
import { count } from '../ui/format';

/** Up to so many ranks are all shown; of more, the first `SOME` that matter until all are asked for. */
const ALL = 16;
const SOME = 8;

export class RanksTable {
  #ranks: RankRow[] = [];
  #odd: number[] = [];
  #whole = false;
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

  /**
   * `stopped` says that the job was asked to end: then no rank that ends has failed. `odd` are the ranks that differ from
   * the others while the job makes no progress.
   */
  update(given: RankRow[], stopped = false, odd: number[] = []): void {
    const ranks = stopped ? given.map((row) => (row.status === 'failed' ? { ...row, status: 'ended' as const } : row)) : given;
    this.#ranks = ranks;
    this.#odd = odd;
    show(this.root, ranks.length > 0);
    setText(this.#count, counts(ranks));
    show(this.#more, ranks.length > ALL);
    setText(this.#more, this.#whole ? __('Show fewer') : _n('Show all %1 rank', 'Show all %1 ranks', ranks.length));
    const shown = this.#whole || ranks.length <= ALL ? ranks : first(ranks, odd);
    fill(this.#table, JSON.stringify([shown, odd]), () => [table(shown, odd)]);
  }
}

/** The ranks to look at first: those that failed, then those that differ, then those that are least far. */
function first(ranks: RankRow[], odd: number[]): RankRow[] {
  const order = (row: RankRow): [number, number] => [row.status === 'failed' ? 0 : odd.includes(row.rank) ? 1 : 2, row.last_step ?? -1];
  return [...ranks].sort((a, b) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1] || a.rank - b.rank).slice(0, SOME);
}

function counts(ranks: RankRow[]): string {
  const many = (status: RankRow['status']): number => ranks.filter((row) => row.status === status).length;
  const words: [number, string][] = [
    [many('failed'), __('failed')],
    [many('ready'), __('running')],
    [many('started'), __('started')],
    [many('waiting'), __('waiting')],
    [many('ended'), __('ended')],
  ];
  return words.flatMap(([number, word]) => (number ? [`${count(number)} ${word}`] : [])).join(', ');
}

interface Column {
  title: string;
  number: boolean;
  cell(row: RankRow): Child;
}

/** Columns that say nothing for any rank are left out. */
function columns(rows: RankRow[], odd: number[]): Column[] {
  const has = (part: (row: RankRow) => unknown): boolean => rows.some((row) => part(row) !== null && part(row) !== '');
  const all: (Column | false)[] = [
    { title: __('Rank'), number: false, cell: rankCell },
    has((row) => row.host) && { title: __('Host'), number: false, cell: (row) => row.host },
    has((row) => row.pid) && { title: __('PID'), number: true, cell: (row) => (row.pid === null ? '' : String(row.pid)) },
    has((row) => row.gpu) && { title: __('GPU'), number: true, cell: (row) => (row.gpu === null ? '' : String(row.gpu)) },
    has((row) => row.last_step) && { title: __('Last step'), number: true, cell: (row) => (row.last_step === null ? '' : count(row.last_step)) },
    { title: __('Lines'), number: true, cell: (row) => count(row.lines) },
    { title: __('On stderr'), number: true, cell: (row) => (row.error_lines ? h('span', { class: 'dd-tag dd-tag-warn dd-num' }, count(row.error_lines)) : '0') },
    { title: __('State'), number: false, cell: (row) => stateCell(row, odd.includes(row.rank)) },
  ];
  return all.filter((column): column is Column => column !== false);
}

function rankCell({ rank }: RankRow): HTMLElement {
  return h('span', { class: 'dd-row' }, h('i', { class: `dd-swatch dd-rank-${rank % 4}${rank % 8 > 3 ? ' dd-rank-dashed' : ''}` }), h('b', {}, String(rank)));
}

function stateCell({ status, how }: RankRow, odd: boolean): HTMLElement {
  const words = { waiting: __('waiting'), started: __('started'), ready: __('running'), ended: __('ended'), failed: __('failed') };
  const mark = h('i', { class: odd ? 'dd-dot dd-odd' : 'dd-dot', 'data-status': status });
  if (odd) return h('span', { class: 'dd-row dd-ink-warn' }, mark, __('differs from the others'));
  return h('span', { class: `dd-row ${status === 'failed' ? 'dd-ink-err' : ''}` }, mark, how ? `${words[status]}, ${how}` : words[status]);
}

function table(rows: RankRow[], odd: number[]): HTMLElement {
  const shown = columns(rows, odd);
  const look = ({ number }: Column): { class: string } => ({ class: number ? 'dd-right' : '' });
  const head = h('tr', {}, ...shown.map((column) => h('th', { scope: 'col', ...look(column) }, column.title)));
  const body = rows.map((row) => h('tr', { class: row.status === 'failed' ? 'dd-bad' : odd.includes(row.rank) ? 'dd-oddrow' : '' }, ...shown.map((column) => h('td', look(column), column.cell(row)))));
  return h('table', { class: 'dd-grid' }, h('thead', {}, head), h('tbody', {}, ...body));
}
