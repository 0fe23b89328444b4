/** The launch form as a widget: the widget's model is the form's store, and its kernel names and removes clusters and signs in to Azure. */
import { Bin, put, tell, type Context, type Model } from '../model';
import { kernelActions } from '../azure/asked';
import type { Choice } from '../choicelist';
import { questions, type Ask } from '../kernel';
import { __ } from '../lab/trans';
import { Form } from '../launchform/form';
import type { NamedClusterActions } from '../launchform/namedclusters';
import type { Fields, Store } from '../launchform/state';
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

function clustersOf(ask: Ask): NamedClusterActions {
  return {
    waiting: __('No answer from the kernel yet'),
    kinds: async () => (await ask('clusters.kinds')) as Plugin[],
    choices: async (kind, option, options) => (await ask('clusters.choices', { kind, option, options })) as Choice[],
    add: (name, kind, options) => ask('clusters.add', { name, kind, options }),
    remove: (name) => ask('clusters.remove', { name }),
  };
}

export default {
  render({ model, el }: Context): () => void {
    const bin = new Bin();
    const ask = questions(model, bin);
    const form = new Form(storeOf(model), { clusters: clustersOf(ask), azure: kernelActions(ask) });
    el.replaceChildren(form.element);
    form.update();
    bin.on(model, 'change', () => form.update());
    return bin.empty;
  },
};
