/**
 * The log's rows on this side: kept up to date by messages that append and replace, filtered by rank, searched.
 *
 * Knows no page. The kernel folds (equal lines of ranks are one row, a redrawn line is open until it ends); see core/log.py.
 */

/** [number, time, rank or null, stream, text, redraws, {rank: number of the line in that rank's output}] */
export type WireRow = [number, number, number | null, string, string, number, Record<string, number>];

export interface Row {
  n: number;
  t: number;
  rank: number | null;
  stream: string;
  text: string;
  redraws: number;
  lines: Map<number, number>;
}

export interface Changes {
  rows: WireRow[];
  /** Lines that are being redrawn; they stand below all rows. */
  open: WireRow[];
  /** Rows below this number are forgotten. */
  first: number;
  /** Lines in all ranks. */
  total: number;
  /** Lines on stderr by rank. */
  errors: Record<string, number>;
}

export class LogStore {
  #rows = new Map<number, Row>();
  #open: Row[] = [];
  total = 0;
  errors: Record<string, number> = {};
  /** Rows that ever came: tells how many are new since a moment. */
  arrived = 0;

  /** Take a message in; `reset` forgets what was there before. */
  apply(changes: Changes, reset = false): void {
    if (reset) this.#rows.clear();
    for (const wire of changes.rows) {
      if (!this.#rows.has(wire[0])) this.arrived += 1;
      this.#rows.set(wire[0], fromWire(wire));
    }
    for (const n of this.#rows.keys()) {
      if (n >= changes.first) break;
      this.#rows.delete(n);
    }
    this.#open = changes.open.map(fromWire);
    this.total = changes.total;
    this.errors = changes.errors;
  }

  /** The rows of all ranks, or of one in the order in which it printed them; open lines come last. */
  rows(rank: number | null): Row[] {
    if (rank === null) return [...this.#rows.values(), ...this.#open];
    const own = [...this.#rows.values()].filter((row) => row.lines.has(rank));
    own.sort((a, b) => (a.lines.get(rank) ?? 0) - (b.lines.get(rank) ?? 0));
    return [...own, ...this.#open.filter((row) => row.rank === rank)];
  }
}

function fromWire([n, t, rank, stream, text, redraws, lines]: WireRow): Row {
  const held = new Map(Object.entries(lines).map(([key, line]) => [Number(key), line]));
  return { n, t, rank, stream, text, redraws, lines: held };
}

/** Where `query` stands in a row's text, without regard to case: pairs of begin and end. */
export function places(text: string, query: string): [number, number][] {
  const found: [number, number][] = [];
  if (!query) return found;
  const [all, wanted] = [text.toLowerCase(), query.toLowerCase()];
  // A letter whose small form is longer would shift the places: such a text is searched as it is.
  const [hay, needle] = all.length === text.length ? [all, wanted] : [text, query];
  for (let at = hay.indexOf(needle); at >= 0; at = hay.indexOf(needle, at + needle.length)) found.push([at, at + needle.length]);
  return found;
}
