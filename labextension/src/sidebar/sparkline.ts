/** A curve as small as a word: the means of a metric, with a dot at the newest. */
const [WIDTH, HEIGHT, PAD] = [76, 26, 4];
const NAMESPACE = 'http://www.w3.org/2000/svg';

/** Values that fall over more than this factor are drawn by their logarithm, as a loss is read. */
const STEEP = 8;

export class Sparkline {
  readonly element = document.createElementNS(NAMESPACE, 'svg');
  readonly #path = document.createElementNS(NAMESPACE, 'path');
  readonly #dot = document.createElementNS(NAMESPACE, 'circle');
  #drawn: string | null = null;

  constructor() {
    const { element } = this;
    element.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
    element.setAttribute('class', 'dd-spark');
    element.setAttribute('aria-hidden', 'true');
    this.#path.setAttribute('fill', 'none');
    this.#dot.setAttribute('r', '2.2');
    element.append(this.#path, this.#dot);
  }

  /** Draw these values; null is a gap. Fewer than two points draw nothing. */
  update(values: readonly (number | null)[]): void {
    const key = values.join(' ');
    if (key === this.#drawn) return;
    this.#drawn = key;
    const points = places(values);
    const last = points.findLast((point) => point !== null) ?? null;
    this.element.toggleAttribute('hidden', last === null);
    this.#path.setAttribute('d', pathOf(points));
    if (!last) return;
    this.#dot.setAttribute('cx', last[0].toFixed(1));
    this.#dot.setAttribute('cy', last[1].toFixed(1));
  }
}

type Point = [x: number, y: number];

/** Return where the values lie; nothing for fewer than two. */
export function places(values: readonly (number | null)[]): (Point | null)[] {
  const known = values.filter((value): value is number => value !== null);
  if (known.length < 2) return [];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const level = low > 0 && high / low > STEEP ? Math.log : (value: number): number => value;
  const [bottom, extent] = [level(low), level(high) - level(low)];
  return values.map((value, at) => {
    if (value === null) return null;
    const part = extent ? (level(value) - bottom) / extent : 0.5;
    return [2 + (at / (values.length - 1)) * (WIDTH - 6), HEIGHT - PAD - part * (HEIGHT - 2 * PAD)];
  });
}

/** Join the points by lines; after a gap a new line begins. */
export function pathOf(points: readonly (Point | null)[]): string {
  let [path, pen] = ['', false];
  for (const point of points) {
    if (point) path += `${pen ? 'L' : 'M'}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    pen = point !== null;
  }
  return path;
}
