/** The launch form as an anywidget: a widget's model is the form's store, and its kernel names and removes clusters. */
import { Bin, put, tell, type Context, type Model } from '../anywidget';
import { __ } from '../lab/trans';
import { Form } from '../launchform/form';
import type { NamedClusterActions } from '../launchform/namedclusters';
import type { Fields, Store } from '../launchform/state';
import { Refusal } from '../refusal';
import type { Plugin } from '../schema';

function storeOf(model: Model): Store {
  return {
    get: (name) => model.get(name) as Fields[typeof name],
    set: (changes) => {
      for (const [name, value] of Object.entries(changes)) put(model, name, value);
    },
    send: ({ type, ...more }) => tell(model, type, more),
  };
}

/** What the kernel answers to one question, which it tells from others by its id. */
interface Answer {
  type?: string;
  id?: string;
  value?: unknown;
  error?: { message: string; hint: string; field: string };
}

function clustersOf(model: Model, bin: Bin): NamedClusterActions {
  const open = new Map<string, (answer: Answer) => void>();
  // Every view of the form, on any page, hears every answer.
  const page = Math.random().toString(36).slice(2);
  let serial = 0;
  const ask = (what: string, more: Record<string, unknown> = {}): Promise<unknown> => new Promise((resolve, reject) => {
    const id = `${page}-${(serial += 1)}`;
    open.set(id, ({ value, error }) => (error ? reject(new Refusal(error.message, error.hint, error.field)) : resolve(value)));
    tell(model, 'clusters', { id, ask: what, ...more });
  });
  bin.on(model, 'msg:custom', (message) => {
    const answer = message as Answer;
    if (answer.type !== 'answer' || answer.id === undefined) return;
    open.get(answer.id)?.(answer);
    open.delete(answer.id);
  });
  return {
    waiting: __('No answer from the kernel yet'),
    kinds: async () => (await ask('kinds')) as Plugin[],
    add: (name, kind, options) => ask('add', { name, kind, options }),
    remove: (name) => ask('remove', { name }),
  };
}

export default {
  render({ model, el }: Context): () => void {
    const bin = new Bin();
    const form = new Form(storeOf(model), { clusters: clustersOf(model, bin) });
    el.replaceChildren(form.element);
    form.update();
    bin.on(model, 'change', () => form.update());
    return bin.empty;
  },
};
