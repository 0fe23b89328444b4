/**
 * What ranks have shown with `plt.show()` and `display`: the pictures beside each other, the newest at the end. A press
 * shows one in its own size.
 *
 * The job's card lists the pictures; each is loaded from its address when it becomes visible. An
 * address goes into an `<img>` and nowhere else, so nothing of a rank can become markup.
 */
import type { Card, Picture } from './card';
import { assign, h, onClick, setText } from '../ui/dom';
import { __ } from '../ui/trans';
import { clock, rankSpans } from '../ui/format';

/** Returns the address of a picture, for an `<img>`. */
export type PictureSource = (number: number) => string;

export class PicturesView {
  readonly #drawn = new Map<number, { root: HTMLElement; caption: HTMLElement }>();
  readonly #strip = h('div', { class: 'dd-picturestrip', tabindex: 0, role: 'group', 'aria-label': __('Pictures shown by the ranks') });
  readonly #seen: IntersectionObserver;

  constructor(readonly root: HTMLElement, private readonly source: PictureSource) {
    root.classList.add('dd-pictures', 'dd-gone');
    root.append(this.#strip);
    this.#seen = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        this.#seen.unobserve(target);
        load(target as HTMLImageElement, this.source);
      }
    });
  }

  update({ pictures }: Card): void {
    this.root.classList.toggle('dd-gone', pictures.length === 0);
    const strip = this.#strip;
    const atEnd = strip.scrollLeft + strip.clientWidth >= strip.scrollWidth - 4;
    let more = false;
    for (const one of pictures) {
      if (!this.#drawn.has(one.number)) {
        this.#draw(one);
        more = true;
      }
      const caption = this.#drawn.get(one.number)?.caption;
      if (caption) setText(caption, __('picture %1, %2, %3', one.number, rankSpans([...one.ranks].sort((a, b) => a - b)), clock(one.t)));
    }
    if (more && atEnd) strip.scrollLeft = strip.scrollWidth;
  }

  dispose(): void {
    this.#seen.disconnect();
  }

  #draw({ number, width, height }: Picture): void {
    const image = pictureElement(number, width, height);
    const caption = h('span', { class: 'dd-sub dd-s12 dd-num' });
    const root = h('button', { type: 'button', class: 'dd-picture', 'aria-pressed': 'false', title: __('Switch between full size and thumbnail') }, image, caption);
    onClick(root, () => assign(root, { 'aria-pressed': String(root.classList.toggle('dd-large')) }));
    this.#drawn.set(number, { root, caption });
    this.#strip.append(root);
    this.#seen.observe(image);
  }
}

/** Return an image of a picture's size that shows nothing yet. */
export function pictureElement(number: number, width: number, height: number): HTMLImageElement {
  return h('img', { 'data-picture': number, alt: __('Picture %1', number), width, height, decoding: 'async' });
}

/** Let an image show its picture. */
export function load(image: HTMLImageElement, source: PictureSource): void {
  image.src = source(Number(image.dataset['picture']));
}

/** Return number and size of the picture that a log line announces, null for any other line. */
export function pictureOf(text: string): [number: number, width: number, height: number] | null {
  const found = /^\[picture (\d{1,3}): (\d{1,5})×(\d{1,5})\]$/.exec(text);
  return found && [Number(found[1]), Number(found[2]), Number(found[3])];
}
