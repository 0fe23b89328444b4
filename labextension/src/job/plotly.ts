/**
 * Draws a figure that the server made. plotly.js comes in a piece of its own, when the first curve is drawn.
 *
 * plotly chooses the ticks. The figure has the colours of light pages; on a dark page they are replaced here, so a new
 * theme needs no request.
 */
import { isDark, watchTheme } from '../ui/theme';

/** A figure as plotly takes it. */
export interface Figure {
  data: readonly unknown[];
  layout: Record<string, unknown>;
}

type Plotly = (typeof import('plotly.js-basic-dist-min'))['default'];

const CONFIG = { displayModeBar: false, displaylogo: false, responsive: false, doubleClick: 'reset', showTips: false };

/** The colours of light figures (`core/theme.py`), and those that replace them on dark pages. */
const DARK: Readonly<Record<string, string>> = {
  '#ffffff': '#212121',
  'rgba(0,0,0,0.87)': 'rgba(255,255,255,0.87)',
  'rgba(0,0,0,0.6)': 'rgba(255,255,255,0.64)',
  '#ececec': '#303030',
  '#c4c4c4': '#5a5a5a',
  '#bdbdbd': '#616161',
  '#1564b2': '#64b5f6',
  'rgba(25,118,210,0.22)': 'rgba(33,150,243,0.22)',
  'rgba(117,117,117,0.16)': 'rgba(170,170,170,0.16)',
  '#e65100': '#ff9800',
  'rgba(117,117,117,0.45)': 'rgba(170,170,170,0.4)',
  '#0d4a94': '#8cbbff',
  '#a8430a': '#ee7f38',
  '#2f9a70': '#6af0b0',
  '#bd5fd2': '#cc78b4',
};

let loading: Promise<Plotly> | undefined;

function load(): Promise<Plotly> {
  return (loading ??= import('plotly.js-basic-dist-min').then((module) => module.default).catch((error: unknown) => {
    loading = undefined;
    throw error;
  }));
}

/** Return a part of a figure in the colours of the page. Its numbers stay the same arrays. */
function inTheme<T>(part: T): T {
  return isDark(document.body) ? (darkened(part) as T) : part;
}

function darkened(part: unknown, name = ''): unknown {
  if (typeof part === 'string') return name.endsWith('color') ? (DARK[part] ?? part) : part;
  if (Array.isArray(part)) return isObject(part[0]) ? part.map((one) => darkened(one)) : part;
  return isObject(part) ? Object.fromEntries(Object.entries(part).map(([key, one]) => [key, darkened(one, key)])) : part;
}

const isObject = (part: unknown): part is object => typeof part === 'object' && part !== null && !Array.isArray(part);

/** One figure on the page, drawn anew by `show` and in a new theme, always in the newest state. */
export class Plot {
  #figure: Figure | null = null;
  #busy = false;
  #again = false;
  #drawn = false;
  #gone = false;
  readonly #observer = new ResizeObserver(() => this.#draw());
  /** The page's theme and ground for which it was drawn. */
  #theme = '';
  readonly #unwatch = watchTheme(document.body, () => this.#theme !== this.#look() && this.#draw());

  constructor(private readonly element: HTMLElement) {
    this.#observer.observe(element);
  }

  /** Draw a figure; while the element has no size it waits for one. */
  show(figure: Figure): void {
    this.#figure = figure;
    this.#draw();
  }

  dispose(): void {
    this.#gone = true;
    this.#observer.disconnect();
    this.#unwatch();
    if (this.#drawn) void load().then((plotly) => plotly.purge(this.element));
  }

  #draw(): void {
    this.#again = true;
    if (!this.#busy) void this.#work();
  }

  async #work(): Promise<void> {
    this.#busy = true;
    try {
      while (this.#again && !this.#gone) {
        this.#again = false;
        await this.#once();
      }
    } finally {
      this.#busy = false;
    }
  }

  async #once(): Promise<void> {
    if (!this.#figure || !fits(room(this.element))) return;
    const plotly = await load();
    // What came while the code was loading is newer.
    const figure = inTheme(this.#figure);
    const [width, height] = room(this.element);
    if (this.#gone || !fits([width, height])) return;
    this.#theme = this.#look();
    await plotly.react(this.element, [...figure.data], this.#layout(figure, width, height), CONFIG);
    this.#drawn = true;
    this.element.classList.add('dd-fitted');
  }

  #ground(): string {
    return getComputedStyle(this.element).getPropertyValue('--dd-bg').trim();
  }

  #look(): string {
    return `${isDark(document.body)} ${this.#ground()}`;
  }

  #layout(figure: Figure, width: number, height: number): Record<string, unknown> {
    // The page's own ground, whatever the theme; plotly mixes the line under the pointer from it.
    const ground = this.#ground();
    const colours = ground ? { paper_bgcolor: ground, plot_bgcolor: ground } : {};
    return { ...figure.layout, ...colours, width, height, autosize: false };
  }
}

function fits([width, height]: [number, number]): boolean {
  return width >= 40 && height >= 40;
}

function room(element: HTMLElement): [number, number] {
  const style = getComputedStyle(element);
  const wide = element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  const high = element.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
  return [Math.floor(wide), Math.floor(high)];
}
