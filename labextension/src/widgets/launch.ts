/** The launch form as a widget: its kernel works the form out, starts the job, names clusters and signs in to Azure. */
import { Disposables, type Context } from './model';
import { questions, type Ask } from './kernel';
import { __ } from '../ui/trans';
import { FormFrame } from '../form/frame';
import type { NamedClusterActions } from '../form/namedclusters';
import type { FormState } from '../form/state';
import type { Text } from '../form/store';
import type { Choice, Plugin } from '../api/schema';

function textOf(ask: Ask): Text {
  return {
    canSweep: true,
    about: () => ({}),
    ask: async (request) => (await ask('form.state', { request })) as FormState,
    submit: async ({ chosen, environment }, secrets) => {
      const variables = environment.map((one) => ({ name: one.name, value: secrets[one.name] ?? one.value }));
      const started = (await ask('form.submit', { request: { chosen, environment: variables } })) as { name: string; job: string };
      return { level: 'ok', ...started };
    },
  };
}

function clustersOf(ask: Ask): NamedClusterActions {
  return {
    waiting: __('No response from the kernel yet'),
    kinds: async () => (await ask('clusters.kinds')) as Plugin[],
    choices: async (kind, option, options) => (await ask('clusters.choices', { kind, option, options })) as Choice[],
    add: (name, kind, options) => ask('clusters.add', { name, kind, options }),
    remove: (name) => ask('clusters.remove', { name }),
  };
}

export default {
  render({ model, el }: Context): () => void {
    const disposables = new Disposables();
    const ask = questions(model, disposables);
    const frame = new FormFrame(textOf(ask), { clusters: clustersOf(ask) });
    el.replaceChildren(frame.element);
    return () => {
      frame.dispose();
      disposables.empty();
    };
  },
};
