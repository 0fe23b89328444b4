/** Questions of a page to its kernel: each message is answered by another one with the same id. */
import { send, type Disposables, type Model } from './model';
import { knowsDocs, Refusal, setDocs } from '../ui/refusal';

/** What the kernel answers to one question. */
interface Answer {
  type?: string;
  id?: string;
  value?: unknown;
  error?: { message: string; hint: string; field: string; code: string };
}

/** Asks for something by its name, with arguments. */
export type Ask = (name: string, given?: Record<string, unknown>) => Promise<unknown>;

/** Return the function that asks a widget's kernel; what is refused rejects with a Refusal. */
export function questions(model: Model, disposables: Disposables): Ask {
  const open = new Map<string, (answer: Answer) => void>();
  // Every view of a widget, on any page, hears every answer.
  const page = Math.random().toString(36).slice(2);
  let serial = 0;
  disposables.on(model, 'msg:custom', (message) => {
    const answer = message as Answer;
    if (answer.type !== 'answer' || answer.id === undefined) return;
    open.get(answer.id)?.(answer);
    open.delete(answer.id);
  });
  const ask: Ask = (name, given = {}) => new Promise((resolve, reject) => {
    const id = `${page}-${(serial += 1)}`;
    open.set(id, ({ value, error }) => (error ? reject(new Refusal(error.message, error.hint, error.field, error.code)) : resolve(value)));
    send(model, 'ask', { id, ask: name, given });
  });
  // JupyterLab's page knows it from its server.
  if (!knowsDocs()) ask('docs').then(setDocs, () => setDocs(''));
  return ask;
}
