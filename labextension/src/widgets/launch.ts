/** The launch form as a widget: its kernel computes the form and starts the job. */
import { connect, type Ask, type Model } from './kernel';
import { FormFrame } from '../form/frame';
import type { NamedClusterActions } from '../form/namedclusters';
import type { FormState } from '../form/state';
import type { Text } from '../form/store';

/** Draw the form into an element; returns the function that removes it. */
export function launchForm(model: Model, el: HTMLElement, clusters: NamedClusterActions): () => void {
  const { ask, dispose } = connect(model);
  const frame = new FormFrame(textOf(ask), { clusters });
  el.replaceChildren(frame.element);
  return () => {
    frame.dispose();
    dispose();
  };
}

function textOf(ask: Ask): Text {
  return {
    canSweep: true,
    about: () => ({}),
    ask: async (request) => (await ask('form.state', { request })) as FormState,
    submit: async ({ values, environment }, secrets) => {
      const variables = environment.map(({ name, value }) => ({ name, value: secrets[name] ?? value }));
      const started = (await ask('form.submit', { request: { values, environment: variables } })) as { name: string; job: string };
      return { level: 'ok', ...started };
    },
  };
}
