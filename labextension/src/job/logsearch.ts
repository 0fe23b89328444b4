/**
 * A search through the lines of a log in small slices, newest lines first, that continues as lines arrive at either end.
 *
 * It does not depend on a page: the owner calls `step` until it returns true, and reads the matches found so far.
 */
import { places, type Lines } from './logstore';

/** Lines between two checks of the clock. */
const CHUNK = 500;

export class LogSearch {
  /** Places of matches below where the search began, descending, and from there on, ascending. */
  #below: number[] = [];
  #above: number[] = [];
  /** The next line to search on both sides. */
  #down = 0;
  #up = 0;
  #begun = false;

  constructor(readonly query: string) {}

  /** How many matches are known. */
  get count(): number {
    return this.#below.length + this.#above.length;
  }

  /** The place of the `index`-th match in order of lines. */
  match(index: number): number | undefined {
    const below = this.#below.length;
    return index < below ? this.#below[below - 1 - index] : this.#above[index - below];
  }

  /** The index of the match at a position, -1 for none. */
  indexOf(place: number): number {
    let [low, high] = [0, this.count];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.match(middle) ?? Infinity) < place) low = middle + 1;
      else high = middle;
    }
    return this.match(low) === place ? low : -1;
  }

  /** Search for at most `budget` milliseconds; true when nothing is left to search now. */
  step(lines: Lines, budget: number): boolean {
    if (!this.#begun) {
      this.#begun = true;
      this.#down = lines.to - 1;
      this.#up = lines.to;
    }
    this.#forget(lines.from);
    const until = performance.now() + budget;
    do {
      for (let left = CHUNK; left > 0; left -= 1) if (!this.#one(lines)) return true;
    } while (performance.now() < until);
    return false;
  }

  /** Search one line, first those that are new; false when there is none. */
  #one(lines: Lines): boolean {
    if (this.#up < lines.to) {
      if (this.#hit(lines, this.#up)) this.#above.push(this.#up);
      this.#up += 1;
      return true;
    }
    if (this.#down < lines.held) return false;
    if (this.#hit(lines, this.#down)) this.#below.push(this.#down);
    this.#down -= 1;
    return true;
  }

  #hit(lines: Lines, place: number): boolean {
    const row = lines.at(place);
    return row !== undefined && places(row[4], this.query).length > 0;
  }

  /** Matches of dropped lines do not count. */
  #forget(from: number): void {
    while ((this.#below.at(-1) ?? from) < from) this.#below.pop();
    if (!this.#below.length && (this.#above[0] ?? from) < from) this.#above = this.#above.filter((place) => place >= from);
    this.#up = Math.max(this.#up, from);
  }
}
