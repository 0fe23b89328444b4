/** Which rows of a long list must exist: rows have known heights, only those near the window are made. */

/** Rows made beyond either edge of the window, in CSS px. */
const MARGIN = 240;

export class Track {
  /** The top of each row, and as a last entry the height of all. */
  #tops: number[] = [0];

  /** Lay out rows of these heights. */
  lay(heights: readonly number[]): void {
    this.#tops = [0];
    let top = 0;
    for (const height of heights) this.#tops.push((top += height));
  }

  get height(): number {
    return this.#tops[this.#tops.length - 1] ?? 0;
  }

  top(index: number): number {
    return this.#tops[index] ?? 0;
  }

  bottom(index: number): number {
    return this.#tops[index + 1] ?? this.height;
  }

  /** Return the index of the row at this height, the nearest when there is none. */
  at(y: number): number {
    let [low, high] = [0, Math.max(0, this.#tops.length - 2)];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.top(middle) <= y) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** Return the first row to make and the one after the last, for a window from `top` of that height. */
  range(top: number, height: number): [first: number, end: number] {
    const rows = this.#tops.length - 1;
    if (rows < 1) return [0, 0];
    return [this.at(Math.max(0, top - MARGIN)), Math.min(rows, this.at(top + height + MARGIN) + 1)];
  }
}
