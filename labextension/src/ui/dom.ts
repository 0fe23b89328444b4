/**
 * Builds elements. Text goes in as text nodes only, so nothing that comes from a job can become markup.
 */
export type Child = Node | string | null | undefined | false;
export type Attributes = Record<string, string | number | boolean | null | undefined>;

/** Return a new element; an attribute that is null, undefined or false is left out, true is set empty. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  assign(element, attributes);
  element.append(...children.filter((child): child is Node | string => Boolean(child)));
  return element;
}

/** Set attributes on an element by the rules of `h`; what is left out is removed. */
export function assign(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
}

/** Set an element's text only when it differs, so that selections and screen readers are left in peace. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** Show or hide an element. */
export function show(element: HTMLElement, visible: boolean): void {
  if (element.hidden === visible) element.hidden = !visible;
}

/** Replace an element's children only when `key` differs from the last call's. */
export function fill(element: HTMLElement, key: string, build: () => Child[]): void {
  if (element.dataset['key'] === key) return;
  element.dataset['key'] = key;
  element.replaceChildren(...build().filter((child): child is Node | string => Boolean(child)));
}

/** Marks where `around` inserts an element into a text. */
export const HERE = '\0';

/** Return the pieces of a text with elements in the places of `HERE`, in their order. */
export function around(text: string, ...elements: Child[]): Child[] {
  return text.split(HERE).flatMap((piece, at) => (at ? [elements[at - 1], piece] : [piece]));
}

/** Return the pieces of a sentence of Python, in which `names` between backticks are set as code. */
export function quoted(text: string): Child[] {
  return text.split('`').map((part, at) => (at % 2 ? h('code', { class: 'dd-mono' }, part) : part));
}

/** Run `action` on a click of the element. */
export function onClick<E extends HTMLElement>(element: E, action: (event: MouseEvent) => void): E {
  element.addEventListener('click', action);
  return element;
}

/**
 * Make `element` the root of a panel's part: it gets the panel's class, and keys typed in it are its own
 * (JupyterLab would take Enter and the arrows for the notebook).
 */
export function adopt(element: HTMLElement, ...classes: string[]): void {
  element.classList.add('dd', ...classes);
  element.setAttribute('data-lm-suppress-shortcuts', 'true');
  element.addEventListener('keydown', (event) => event.stopPropagation());
}

/** Call `then` as soon as the element is part of the page. */
export function whenAttached(element: HTMLElement, then: () => void): void {
  if (element.isConnected) then();
  else requestAnimationFrame(() => whenAttached(element, then));
}

let panels = 0;

/** Return what the tabs of a list show: a panel with an id, which each tab names as `aria-controls`. */
export function tabPanel(label: string, ...inside: HTMLElement[]): HTMLElement {
  return h('div', { id: `dd-panel-${(panels += 1)}`, class: 'dd-contents', role: 'tabpanel', 'aria-label': label }, ...inside);
}

/** Move focus and choice among the items of a tablist or radiogroup with the arrow keys, Home and End. */
export function arrowKeys(list: HTMLElement, items: () => HTMLElement[], choose: (item: HTMLElement) => void): void {
  list.addEventListener('keydown', (event) => {
    const all = items();
    const at = all.indexOf(document.activeElement as HTMLElement);
    const to = target(event.key, at, all.length);
    const item = to === null || at < 0 ? undefined : all[to];
    if (!item) return;
    event.preventDefault();
    item.focus();
    choose(item);
  });
}

function target(key: string, at: number, count: number): number | null {
  if (key === 'ArrowRight' || key === 'ArrowDown') return (at + 1) % count;
  if (key === 'ArrowLeft' || key === 'ArrowUp') return (at + count - 1) % count;
  if (key === 'Home') return 0;
  if (key === 'End') return count - 1;
  return null;
}
