/** Elements of small drawings. Numbers are written with one digit behind the point. */
const NAMESPACE = 'http://www.w3.org/2000/svg';

export type Attributes = Record<string, string | number>;

export function element(tag: string, attributes: Attributes): SVGElement {
  const node = document.createElementNS(NAMESPACE, tag) as SVGElement;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, typeof value === 'number' ? String(Number(value.toFixed(1))) : value);
  return node;
}

/** A drawing that screen readers skip. */
export function drawing(width: number, height: number, parts: SVGElement[], className = ''): SVGSVGElement {
  const node = element('svg', { width, height, viewBox: `0 0 ${width} ${height}`, class: className, 'aria-hidden': 'true' }) as SVGSVGElement;
  node.append(...parts);
  return node;
}

/** A drawing that screen readers read as these words. */
export function figure(width: number, height: number, parts: SVGElement[], className: string, spoken: string): SVGSVGElement {
  const node = drawing(width, height, parts, className);
  node.removeAttribute('aria-hidden');
  node.setAttribute('role', 'img');
  node.setAttribute('aria-label', spoken);
  return node;
}

export const line = (d: string, className: string, more: Attributes = {}): SVGElement => element('path', { d, class: className, ...more });

export function text(x: number, y: number, words: string, anchor: string, className = ''): SVGElement {
  const node = element('text', { x, y, 'text-anchor': anchor, class: className });
  node.textContent = words;
  return node;
}
