/** A widget's model as its views use it (JupyterLab's and anywidget's are alike), and what these views share. */

/** Hears a change, or a message with its binary parts. */
export type Listener = (message: unknown, buffers?: DataView[]) => void;

export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(event: string, callback: Listener): void;
  off(event: string, callback: Listener): void;
  send(content: unknown): void;
}

export interface Context {
  model: Model;
  el: HTMLElement;
}

/** Runs what must be undone when a view goes away. */
export class Disposables {
  #undo: (() => void)[] = [];

  /** Listen to a model's event until the view goes away. */
  on(model: Model, event: string, callback: Listener): void {
    model.on(event, callback);
    this.#undo.push(() => model.off(event, callback));
  }

  /** Call `callback` every `milliseconds` until the view goes away. */
  every(milliseconds: number, callback: () => void): void {
    const timer = setInterval(callback, milliseconds);
    this.#undo.push(() => clearInterval(timer));
  }

  add(undo: () => void): void {
    this.#undo.push(undo);
  }

  readonly empty = (): void => {
    for (const undo of this.#undo.splice(0)) undo();
  };
}

/** Send a message to the kernel; without one the view stays what it is. */
export function send(model: Model, type: string, more: Record<string, unknown> = {}): void {
  try {
    model.send({ type, ...more });
  } catch {
    // The kernel is gone; the head of the panel says that the view is paused.
  }
}

/** Set a trait here and in the kernel. */
export function setTrait(model: Model, name: string, value: unknown): void {
  model.set(name, value);
  try {
    model.save_changes();
  } catch {
    // As above.
  }
}

/** Call `then` as soon as the element is part of the page. */
export function whenAttached(element: HTMLElement, then: () => void): void {
  if (element.isConnected) then();
  else requestAnimationFrame(() => whenAttached(element, then));
}
