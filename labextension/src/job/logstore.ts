/**
 * The log's rows on this side: kept up to date by messages that append and replace, for all ranks or one, searched.
 *
 * Knows no page. The other side folds (equal lines of ranks are one row, a redrawn line is open until it ends); see
 * core/log.py. Rows stay as they travelled, because there may be hundreds of thousands: the place of each is its number.
 */

/** Begin and end of a part of a text, and its styles with spaces between them; see core/humanize.py. */
export type Styled = readonly [number, number, string];

/** [number, time, rank or null, stream, text, redraws, {rank: position of its line, higher for later lines}, styles] */
export type WireRow = readonly [number, number, number | null, string, string, number, Readonly<Record<string, number>>, readonly Styled[]];

export interface Row {
  n: number;
  t: number;
  rank: number | null;
  stream: string;
  text: string;
  redraws: number;
  lines: Map<number, number>;
  styles: readonly Styled[];
}

/** Rows before a number, the newest of them first to be fetched; what comes ends right before that number. */
export type Older = (before: number) => Promise<Changes>;

export interface Changes {
  rows: readonly WireRow[];
  /** Lines that are being redrawn; they are shown below all rows. */
  open: readonly WireRow[];
  /** Number of the oldest row that the other side has at hand: so far a view can scroll. */
  first: number;
  /** Number of the next row to come. */
  next?: number;
  /** Lines in all ranks. */
  total: number;
  /** Lines on stderr by rank. */
  errors: Readonly<Record<string, number>>;
  /** How to get the rows between `first` and the first of `rows`, where these are only the newest. */
  older?: Older;
}

/**
 * A sequence of rows at places from `from` to before `to`, the row's number in the sequence of all ranks. Rows stay at their
 * places while others come at either end; positions below `held` and rare gaps have no row (yet).
 */
export interface Lines {
  readonly from: number;
  readonly to: number;
  readonly held: number;
  at(place: number): WireRow | undefined;
}

/** Milliseconds before a failed request for rows is retried. */
const AGAIN = 2000;
/** Rows that are kept of an endless log, and most rows that are fetched besides by a reader who scrolls up. */
const [MOST, FAR] = [120_000, 500_000];

export class LogStore {
  constructor(private readonly most = MOST, private readonly far = FAR) {}

  readonly #all = new Shelf();
  /** The rows of one rank or stream that a view requested last. */
  #selection: Selection | null = null;
  /** Rows older than those that are here, changed before they came. */
  readonly #early = new Map<number, WireRow>();
  #open: readonly WireRow[] = [];
  #older: Older | null = null;
  #loading: Promise<void> | null = null;
  #failedAt = -Infinity;
  #age = 0;
  /** Lines in the rows that are here, and in all rows up to the newest of them. */
  #held = 0;
  #counted = 0;
  /** Whether no rows precede the loaded ones, regardless of the counts. */
  #exhausted = false;
  /** How much lower the numbers of the oldest rows are on the other side: numbers that no row has are closed up here. */
  #shift = 0;
  /** What came since the other side began anew, while a reader reads the rows kept here. */
  #next: LogStore | null = null;
  /** Whether a reader reads rows that must be kept although the log is far ahead of them. */
  #pinned = false;
  /** Number of the oldest row that the other side has. */
  first = 0;
  total = 0;
  errors: Readonly<Record<string, number>> = {};
  /** Whether a search is active, which keeps as many rows as scrolling up does. */
  searched = false;
  /** Total number of appended rows, to count the rows that are new since a moment. */
  arrived = 0;

  /** Take a message in; `reset` forgets what was there before. */
  apply(changes: Changes, reset = false): void {
    if (this.#next || (reset && this.#pinned && !this.#all.empty)) this.#putOff(changes, reset);
    else {
      if (reset) this.#reset(changes);
      if (changes.older) this.#older = changes.older;
      for (const row of changes.rows) this.#put(row);
      this.first = changes.first;
      this.#counted = changes.total;
      this.#forget();
      this.#open = changes.open;
    }
    this.total = changes.total;
    this.errors = changes.errors;
  }

  #putOff(changes: Changes, reset: boolean): void {
    const next = (this.#next ??= new LogStore(this.most, this.far));
    const before = reset ? 0 : next.arrived;
    if (reset) next.arrived = 0;
    next.apply(changes, reset);
    // Lines that were left out are new as well.
    this.arrived += Math.max(next.arrived - before, reset ? changes.total - this.total : 0);
  }

  /** Keep the rows that are here although the other side begins anew; undone, they make place for what came since. */
  pin(on: boolean): void {
    this.#pinned = on;
    const next = this.#next;
    if (on || !next) return;
    this.#next = null;
    const { arrived } = this;
    this.apply(next.snapshot(), true);
    this.arrived = arrived;
  }

  #reset(changes: Changes): void {
    this.#all.clear(changes.rows[0]?.[0] ?? changes.next ?? changes.first);
    this.#selection = null;
    this.#early.clear();
    this.#older = null;
    this.#loading = null;
    this.#age += 1;
    this.#held = this.#shift = 0;
    this.#exhausted = false;
  }

  #put(row: WireRow): void {
    const n = row[0];
    if (this.#all.empty) this.#all.clear(n);
    if (n < this.#all.from) {
      if (this.#older) this.#early.set(n, row);
      return;
    }
    const known = this.#all.at(n);
    if (!known) this.arrived += 1;
    this.#held += weight(row) - (known ? weight(known) : 0);
    this.#all.put(n, row);
    this.#selection?.put(row);
  }

  #forget(): void {
    const first = this.#older ? this.#all.to - (this.#pinned || this.searched ? this.far : this.most) : this.first;
    const gone = this.#all.cut(first);
    if (gone.length) {
      for (const row of gone) if (row) this.#held -= weight(row);
      this.#selection?.cut(first);
      this.#exhausted = false;
    }
    for (const n of this.#early.keys()) if (n < this.first) this.#early.delete(n);
  }

  /** How many lines there are before the rows that are here, so far as is known. */
  get earlier(): number {
    return this.#exhausted || this.#all.from <= 0 ? 0 : Math.max(0, this.#counted - this.#held);
  }

  /** Whether all rows that the other side has at hand are here. */
  get whole(): boolean {
    return !this.#older || this.#all.from <= this.first;
  }

  /** Whether `load(true)` has something to fetch. */
  get reachable(): boolean {
    return !this.whole || (this.earlier > 0 && this.#all.rows.length < this.far);
  }

  /**
   * Fetch some more of the older rows; true when there is news of them afterwards. Call it again until `whole`, or
   * `beyond` what the other side has at hand until there is nothing `earlier`.
   */
  async load(beyond = false): Promise<boolean> {
    if (!(beyond ? this.reachable : !this.whole)) return false;
    if (!this.#older || Date.now() - this.#failedAt < AGAIN) return false;
    const age = this.#age;
    this.#loading ??= this.#older(this.#all.from - this.#shift).then(
      (changes) => {
        if (age === this.#age) this.#prepend(changes.rows);
      },
      () => {
        this.#failedAt = Date.now();
      },
    ).finally(() => {
      if (age === this.#age) this.#loading = null;
    });
    const before = this.#all.from;
    await this.#loading;
    return age === this.#age && this.#all.from < before;
  }

  #prepend(rows: readonly WireRow[]): void {
    const last = rows.at(-1);
    if (!last) {
      this.#exhausted = true;
      this.#all.prepend([], this.first);
      return;
    }
    if (this.whole) this.#shift = this.#all.from - 1 - last[0];
    const shift = this.#shift;
    const older = rows
      .map((row) => newer(this.#early.get(row[0]), row))
      .map((row): WireRow => (shift ? [row[0] + shift, ...row.slice(1)] as unknown as WireRow : row))
      .filter((row) => row[0] < this.#all.from);
    for (const row of older) {
      this.#early.delete(row[0]);
      this.#held += weight(row);
    }
    this.#all.prepend(older, this.first);
    this.#selection?.prepend(older);
  }

  /**
   * The rows of all ranks, or of one in the order in which it printed them; without the open lines. With `stderr` only
   * what was printed there, progress bars left out.
   */
  lines(rank: number | null, stderr = false): Lines {
    if (rank === null && !stderr) {
      const { from, to } = this.#all;
      return { from: this.whole ? from : this.first, to, held: from, at: (n) => this.#all.at(n) };
    }
    if (this.#selection?.rank !== rank || this.#selection.stderr !== stderr) {
      this.#selection = new Selection(rank, stderr);
      for (const row of this.#all.rows) if (row) this.#selection.put(row);
    }
    return this.#selection;
  }

  /** The lines that are being redrawn, of all ranks or one. */
  open(rank: number | null): WireRow[] {
    return this.#open.filter((row) => rank === null || row[2] === rank);
  }

  /** All rows that are here, with the open lines at the end. */
  rows(rank: number | null): Row[] {
    const lines = this.lines(rank);
    const found: Row[] = [];
    for (let place = lines.held; place < lines.to; place += 1) {
      const row = lines.at(place);
      if (row) found.push(fromWire(row));
    }
    return [...found, ...this.open(rank).map(fromWire)];
  }

  /** Everything as one message, for another store. */
  snapshot(): Changes {
    const rows = this.#all.rows.filter((row): row is WireRow => row !== undefined);
    const changes = { rows, open: this.#open, first: this.first, next: this.#all.to, total: this.total, errors: this.errors };
    return this.#older ? { ...changes, older: this.#older } : changes;
  }
}

/** Rows by consecutive places. */
class Shelf implements Lines {
  rows: (WireRow | undefined)[] = [];
  from = 0;

  get to(): number {
    return this.from + this.rows.length;
  }

  get held(): number {
    return this.from;
  }

  get empty(): boolean {
    return this.rows.length === 0;
  }

  at(place: number): WireRow | undefined {
    return this.rows[place - this.from];
  }

  clear(from: number): void {
    this.rows = [];
    this.from = from;
  }

  put(place: number, row: WireRow): void {
    if (this.empty) this.from = place;
    if (place < this.from) {
      this.rows = [...new Array<undefined>(this.from - place), ...this.rows];
      this.from = place;
    }
    // A gap is filled, so that the array stays a dense one.
    while (this.to < place) this.rows.push(undefined);
    this.rows[place - this.from] = row;
  }

  /** Put rows before all others, whose places are the numbers of the rows; from `first` on nothing is missing then. */
  prepend(rows: readonly WireRow[], first: number): void {
    const begin = Math.min(this.from, rows[0]?.[0] ?? first);
    const chunk = new Array<WireRow | undefined>(this.from - begin).fill(undefined);
    for (const row of rows) chunk[row[0] - begin] = row;
    this.rows = chunk.concat(this.rows);
    this.from = begin;
  }

  /** Take away and return the rows before a place. */
  cut(place: number): (WireRow | undefined)[] {
    if (place <= this.from) return [];
    const gone = this.rows.splice(0, place - this.from);
    this.from = place;
    return gone;
  }
}

/**
 * The rows of one rank in the order in which it printed them, or those on stderr, progress bars left out. The place of the
 * first one found is 0, of older ones below.
 */
class Selection implements Lines {
  from = 0;
  #rows: WireRow[] = [];

  constructor(
    readonly rank: number | null,
    readonly stderr: boolean,
  ) {}

  get to(): number {
    return this.from + this.#rows.length;
  }

  get held(): number {
    return this.from;
  }

  at(place: number): WireRow | undefined {
    return this.#rows[place - this.from];
  }

  /** Take a row that is one of these. Nearly always it is a new one; one that was folded into an earlier row comes late. */
  put(row: WireRow): void {
    if (!this.#holds(row)) return;
    const at = this.#find(this.#order(row));
    const known = this.#rows[at];
    this.#rows.splice(at, known && this.#order(known) === this.#order(row) ? 1 : 0, row);
  }

  prepend(rows: readonly WireRow[]): void {
    const older = rows.filter((row) => this.#holds(row)).sort((a, b) => this.#order(a) - this.#order(b));
    this.#rows = [...older, ...this.#rows];
    this.from -= older.length;
  }

  /** Take away the oldest rows, those whose number is below `first`. */
  cut(first: number): void {
    let gone = 0;
    while (gone < this.#rows.length && (this.#rows[gone]?.[0] ?? first) < first) gone += 1;
    this.#rows.splice(0, gone);
    this.from += gone;
  }

  #holds(row: WireRow): boolean {
    const { rank, stderr } = this;
    return (rank === null || row[6][rank] !== undefined) && (!stderr || (row[3] === 'err' && row[5] === 0));
  }

  /** The line's number in the rank's output, or the row's in that of all ranks. */
  #order(row: WireRow): number {
    return this.rank === null ? row[0] : (row[6][this.rank] ?? 0);
  }

  /** Return the index of the first row that is not before one, searching from the end. */
  #find(order: number): number {
    let [low, high] = [0, this.#rows.length];
    const last = this.#rows.at(-1);
    if (last && this.#order(last) < order) return high;
    while (low < high) {
      const middle = (low + high) >> 1;
      const row = this.#rows[middle];
      if (row && this.#order(row) < order) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** How many lines a row represents. */
const weight = (row: WireRow): number => Object.keys(row[6]).length || 1;

/** Of two states of a row the one that more ranks have printed. */
function newer(known: WireRow | undefined, row: WireRow): WireRow {
  return known && Object.keys(known[6]).length > Object.keys(row[6]).length ? known : row;
}

export function fromWire([n, t, rank, stream, text, redraws, lines, styles]: WireRow): Row {
  const held = new Map(Object.entries(lines).map(([key, line]) => [Number(key), line]));
  return { n, t, rank, stream, text, redraws, lines: held, styles };
}

/** Positions of `query` in a row's text, ignoring case: pairs of begin and end. */
export function places(text: string, query: string): [number, number][] {
  const found: [number, number][] = [];
  if (!query) return found;
  const [all, wanted] = [text.toLowerCase(), query.toLowerCase()];
  // A letter whose small form is longer would shift the places: such a text is searched as it is.
  const [hay, needle] = all.length === text.length ? [all, wanted] : [text, query];
  for (let at = hay.indexOf(needle); at >= 0; at = hay.indexOf(needle, at + needle.length)) found.push([at, at + needle.length]);
  return found;
}
