/**
 * What ranks and machines use, as strips under the curve: one for CPU, memory, GPU and so on, all over the same seconds. The
 * rank that something is wrong with is orange, all others are grey: who, not which.
 */
import { fill, h, setText, show } from '../ui/dom';
import { bytes, duration, number, ranks as rankWords } from '../ui/format';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import type { components } from '../api/schema';

export type Resources = components['schemas']['Resources'];
type Line = Resources['strips'][string][number];
interface Strip {
  name: string;
  lines: Line[];
}
type Usage = Omit<Resources, 'strips'> & { strips: Strip[] };

const NAMESPACE = 'http://www.w3.org/2000/svg';
/** The space in which a strip is drawn; it is stretched to its place. */
const [WIDTH, HEIGHT, PAD] = [1000, 44, 3];

export class ResourcesView {
  readonly #summary = h('span', { class: 'dd-sub dd-s12 dd-ell dd-grow' });
  readonly #strips = h('div', { class: 'dd-strips' });
  readonly #box: HTMLDetailsElement;
  #value: Usage | null = null;
  /** Seconds under the pointer, null while the newest values are shown. */
  #at: number | null = null;

  constructor(private readonly root: HTMLElement) {
    root.classList.add('dd-resources');
    const head = h('summary', { class: 'dd-row' }, icon('right', 12, 'dd-turnable'), h('span', { class: 'dd-h3' }, __('Resources')), this.#summary);
    this.#box = h('details', {}, head, this.#strips);
    root.append(this.#box);
    show(root, false);
    this.#box.addEventListener('toggle', () => this.#draw());
    this.#strips.addEventListener('pointermove', (event) => this.#point(event));
    this.#strips.addEventListener('pointerleave', () => this.#point(null));
  }

  /** Show the strips, or only one line of words. */
  open(on: boolean): void {
    this.#box.open = on;
  }

  take(resources: Resources): void {
    const value = { ...resources, strips: Object.entries(resources.strips).map(([name, lines]) => ({ name, lines })) };
    this.#value = value;
    show(this.root, value.strips.length > 0);
    setText(this.#summary, summary(value));
    this.#draw();
  }

  #draw(): void {
    const value = this.#value;
    if (!value || !this.#box.open) return;
    const last = lastSecond(value);
    fill(this.#strips, JSON.stringify(value.strips), () => [...value.strips.map((strip) => drawn(strip, value, last)), axis(last)]);
    this.#read();
  }

  /** Write each strip's values: the newest ones, or those under the pointer. */
  #read(): void {
    const value = this.#value;
    if (!value) return;
    const last = lastSecond(value);
    for (const cursor of this.#strips.querySelectorAll<HTMLElement>('.dd-stripcursor')) {
      show(cursor, this.#at !== null);
      cursor.style.left = `${(100 * (this.#at ?? 0)) / last}%`;
    }
    this.#strips.querySelectorAll('.dd-stripvalue').forEach((element, at) => {
      const strip = value.strips[at];
      if (strip) setText(element, readOut(strip, value, this.#at));
    });
    const end = this.#strips.querySelector('.dd-stripend');
    if (end) setText(end, duration(this.#at ?? last));
  }

  #point(event: PointerEvent | null): void {
    const plot = this.#strips.querySelector('.dd-stripplot')?.getBoundingClientRect();
    if (!this.#value || !plot?.width) return;
    const part = event ? (event.clientX - plot.left) / plot.width : -1;
    this.#at = part >= 0 && part <= 1 ? part * lastSecond(this.#value) : null;
    this.#read();
  }
}

const lastSecond = ({ strips }: Usage): number => Math.max(1, ...strips.flatMap(({ lines }) => lines.map(({ steps }) => steps.at(-1) ?? 0)));

/** Return title and unit of a strip. */
function titleOf(name: string): [string, string] {
  const titles: Record<string, [string, string]> = {
    cpu: [__('CPU'), __('% of a core')],
    memory: [__('Memory'), __('each rank')],
    gpu: [__('GPU'), __('% busy')],
    gpu_memory: [__('GPU memory'), __('each rank')],
    torch_allocated: [__('Tensors on GPU'), __('each rank')],
    power: [__('Power'), 'W'],
    disk: [__('Disk'), __('each host')],
    network: [__('Network'), __('each host')],
  };
  return titles[name] ?? [name, ''];
}

/** Return a value with its unit. */
export function amount(name: string, value: number): string {
  if (name === 'cpu' || name === 'gpu') return __('%1 %', number(Math.round(value)));
  if (name === 'power') return `${number(Math.round(value))} W`;
  return name === 'disk' || name === 'network' ? __('%1/s', bytes(value)) : bytes(value);
}

/** Ranks that a mark of a strip's resource names. */
const marked = (strip: Strip, { marks }: Usage): number[] =>
  marks.flatMap(({ kind, rank }) => (strip.name === kind ? [rank] : []));

function drawn(strip: Strip, value: Usage, last: number): HTMLElement {
  const orange = marked(strip, value);
  const top = topOf(strip);
  const svg = document.createElementNS(NAMESPACE, 'svg');
  svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('aria-hidden', 'true');
  // Marked rows come first.
  for (const line of [...strip.lines].sort((a, b) => Number(orange.includes(a.rank)) - Number(orange.includes(b.rank)))) {
    const path = document.createElementNS(NAMESPACE, 'path');
    path.setAttribute('d', pathOf(line, last, top));
    path.setAttribute('class', orange.includes(line.rank) ? 'dd-stripline dd-odd' : 'dd-stripline');
    svg.append(path);
  }
  const [title, unit] = titleOf(strip.name);
  const plot = h('div', { class: 'dd-stripplot' }, svg, h('i', { class: 'dd-stripcursor', hidden: true }));
  const label = `${title}: ${readOut(strip, value, null)}`;
  const words = h('div', { class: 'dd-striptitle' }, h('b', {}, title), h('span', { class: 'dd-sub' }, unit));
  const scale = h('div', { class: 'dd-stripscale dd-sub dd-num' }, h('span', {}, amount(strip.name, top)), h('span', {}, '0'));
  return h('div', { class: 'dd-strip', role: 'img', 'aria-label': label }, words, scale, plot, h('div', { class: orange.length ? 'dd-stripvalue dd-num dd-ink-warn' : 'dd-stripvalue dd-num' }));
}

function axis(last: number): HTMLElement {
  const ends = h('div', { class: 'dd-row' }, h('span', { class: 'dd-grow' }, duration(0)), h('span', { class: 'dd-stripend' }, duration(last)));
  return h('div', { class: 'dd-strip dd-stripaxis dd-sub dd-num' }, h('div'), h('div'), ends, h('div'));
}

/** Return the value at the top of a strip: 100 % for what is in percent, unless there is more, else the highest value. */
function topOf(strip: Strip): number {
  const most = Math.max(0, ...strip.lines.flatMap(({ values }) => values.filter((one) => one !== null)));
  return strip.name === 'cpu' || strip.name === 'gpu' ? Math.max(100, most) : most || 1;
}

function pathOf({ steps, values }: Line, last: number, top: number): string {
  let [path, pen] = ['', false];
  steps.forEach((second, at) => {
    const value = values[at] ?? null;
    if (value !== null) {
      const [x, y] = [(second / last) * WIDTH, HEIGHT - PAD - (value / top) * (HEIGHT - 2 * PAD)];
      path += `${pen ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
    }
    pen = value !== null;
  });
  return path;
}

/** Return the value of a line at a moment, null before and behind it; the newest one without a moment. */
function valueAt({ steps, values }: Line, at: number | null): number | null {
  if (at === null) return values.findLast((value) => value !== null) ?? null;
  if (at > (steps.at(-1) ?? 0) + 2) return null;
  return values[steps.findLastIndex((second) => second <= at)] ?? null;
}

/** Return the values of a strip at a moment: "57 % to 60 %", with a mark "rank 3: 14.6 GB, others: 4.2 GB". */
function readOut(strip: Strip, value: Usage, at: number | null): string {
  const orange = marked(strip, value);
  const extent = (lines: Line[]): string => {
    const known = lines.map((line) => valueAt(line, at)).filter((one) => one !== null);
    const [low, high] = [amount(strip.name, Math.min(...known)), amount(strip.name, Math.max(...known))];
    return !known.length ? '' : low === high ? low : __('%1 to %2', low, high);
  };
  const others = extent(strip.lines.filter(({ rank }) => !orange.includes(rank)));
  if (!orange.length) return others;
  const named = `${rankWords(orange)}: ${extent(strip.lines.filter(({ rank }) => orange.includes(rank)))}`;
  return others ? `${named}, ${__('others: %1', others)}` : named;
}

/** Return the newest numbers in one line. */
function summary(value: Usage): string {
  const words = value.strips.filter(({ name }) => name === 'cpu' || name === 'memory' || name === 'gpu');
  const left = value.samples.flatMap(({ machine: { memory, limit } }) => (memory === null || limit === null ? [] : [Math.max(0, limit - memory)]));
  const least = left.length ? [__('%1 left', bytes(Math.min(...left)))] : [];
  return [...words.map((strip) => `${titleOf(strip.name)[0]} ${readOut(strip, value, null)}`), ...least].join(' · ');
}
