/** Requests of a page to the kernel of a widget: each message is answered by another message with the same id. */
import { Refusal } from '../ui/refusal';

/** The part of a widget's model that is used. */
export interface Model {
  get(name: string): unknown;
  on(event: string, callback: (message: unknown) => void): void;
  off(event: string, callback: (message: unknown) => void): void;
  send(content: unknown): void;
}

/** An answer of the kernel: its `value` or its `error`. */
export interface Answer {
  type?: string;
  id?: string;
  value?: unknown;
  error?: { message: string; hint: string; field: string; code: string };
}

/** Asks for something by its name, with arguments; an error of the kernel rejects with a Refusal. */
export type Ask = (name: string, given?: Record<string, unknown>) => Promise<unknown>;

/** Return the function that asks the kernel of a widget, and the one that stops listening. */
export function connect(model: Model): { ask: Ask; dispose: () => void } {
  const open = new Map<string, (answer: Answer) => void>();
  // Every view of a widget, on any page, receives every answer.
  const page = Math.random().toString(36).slice(2);
  let serial = 0;
  const receive = (message: unknown): void => {
    const answer = message as Answer;
    if (answer.type !== 'answer' || answer.id === undefined) return;
    open.get(answer.id)?.(answer);
    open.delete(answer.id);
  };
  model.on('msg:custom', receive);
  const ask: Ask = (name, given = {}) => new Promise((resolve) => {
    const id = `${page}-${(serial += 1)}`;
    open.set(id, (answer) => resolve(Promise.resolve(answer).then(valueOf)));
    try {
      model.send({ type: 'request', id, call: name, arguments: given });
    } catch {
      // The kernel is gone; the view shows that it does not respond.
    }
  });
  return { ask, dispose: () => model.off('msg:custom', receive) };
}

/** Return the value of an answer. Raises Refusal. */
export function valueOf({ value, error }: Answer): unknown {
  if (error) throw new Refusal(error.message, error.hint, error.field, error.code);
  return value;
}
