/** Draws figures with plotly.js, which is loaded with the first figure. A new theme needs no request. */
import { isDark, watchTheme } from '../ui/theme';
import { coloursOf, type Drawing } from './figure';

type Plotly = (typeof import('plotly.js-basic-dist-min'))['default'];

const CONFIG = { displayModeBar: false, displaylogo: false, responsive: false, doubleClick: 'reset', showTips: false };

let loading: Promise<Plotly> | undefined;

function load(): Promise<Plotly> {
  return (loading ??= import('plotly.js-basic-dist-min').then((module) => module.default).catch((error: unknown) => {
    loading = undefined;
    throw error;
  }));
}

/** One figure on the page; `show` and a new theme redraw it. */
export class Plot {
  #drawing: Drawing | null = null;
  #busy = false;
  #again = false;
  #drawn = false;
  #gone = false;
  readonly #observer = new ResizeObserver(() => this.#draw());
  /** The page's theme and background for which it was drawn. */
  #theme = '';
  readonly #unwatch = watchTheme(document.body, () => this.#theme !== this.#look() && this.#draw());

  constructor(private readonly element: HTMLElement) {
    this.#observer.observe(element);
  }

  /** Draw a figure as soon as the element has a size. */
  show(drawing: Drawing): void {
    this.#drawing = drawing;
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
    if (!this.#drawing || !fits(room(this.element))) return;
    const plotly = await load();
    // `show` may have been called while the code was loading.
    const colours = coloursOf(isDark(document.body), this.#ground());
    const { data, layout } = this.#drawing(colours);
    const font = { family: getComputedStyle(this.element).fontFamily, size: 11, color: colours.dim };
    const [width, height] = room(this.element);
    if (this.#gone || !fits([width, height])) return;
    this.#theme = this.#look();
    await plotly.react(this.element, [...data], { ...layout, font, width, height, autosize: false }, CONFIG);
    this.#drawn = true;
    this.element.classList.add('dd-fitted');
  }

  #ground(): string {
    return getComputedStyle(this.element).getPropertyValue('--dd-bg').trim();
  }

  #look(): string {
    return `${isDark(document.body)} ${this.#ground()}`;
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
