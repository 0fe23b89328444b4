/** Elements of small drawings. Numbers are written with one digit behind the point. */
const NAMESPACE = 'http://www.w3.org/2000/svg';

export type Attributes = Record<string, string | number>;

export function element(tag: string, attributes: Attributes): SVGElement {
  const found = document.createElementNS(NAMESPACE, tag) as SVGElement;
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, typeof value === 'number' ? String(Number(value.toFixed(1))) : value);
  return found;
}

/** A drawing that screen readers skip. */
export function drawing(width: number, height: number, parts: SVGElement[], className = ''): SVGSVGElement {
  const found = element('svg', { width, height, viewBox: `0 0 ${width} ${height}`, class: className, 'aria-hidden': 'true' }) as SVGSVGElement;
  found.append(...parts);
  return found;
}

/** A drawing that screen readers read as these words. */
export function figure(width: number, height: number, parts: SVGElement[], className: string, spoken: string): SVGSVGElement {
  const found = drawing(width, height, parts, className);
  found.removeAttribute('aria-hidden');
  found.setAttribute('role', 'img');
  found.setAttribute('aria-label', spoken);
  return found;
}

export const line = (d: string, className: string, more: Attributes = {}): SVGElement => element('path', { d, class: className, ...more });

export function text(x: number, y: number, words: string, anchor: string, className = ''): SVGElement {
  const found = element('text', { x, y, 'text-anchor': anchor, class: className });
  found.textContent = words;
  return found;
}
