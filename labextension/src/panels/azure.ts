/** The panel "Sign in to Azure" as an anywidget: its kernel answers what JupyterLab's sidebar asks the server. */
import { Bin, type Context } from '../anywidget';
import { SignIn } from '../azure/signin';
import type { AzureSignIn, AzureSubscription, SignInActions } from '../azure/types';
import { adopt, h } from '../dom';
import { icon } from '../icons';
import { questions, type Ask } from '../kernel';
import { __ } from '../lab/trans';

function actionsOf(ask: Ask): SignInActions {
  const told = (what: string, given: Record<string, unknown> = {}): Promise<AzureSignIn> => ask(what, { given }) as Promise<AzureSignIn>;
  return {
    status: () => told('status'),
    signIn: (start) => told('sign_in', { ...start }),
    cancel: () => told('cancel'),
    signOut: () => told('sign_out'),
    settle: (change) => told('settings', { ...change }),
    subscriptions: () => ask('subscriptions') as Promise<AzureSubscription[]>,
  };
}

export default {
  render({ model, el }: Context): () => void {
    const bin = new Bin();
    const view = new SignIn(actionsOf(questions(model, bin, 'azure')));
    const title = h('h2', { class: 'dd-title dd-row' }, icon('cloud'), __('Sign in to Azure'));
    const panel = h('section', { class: 'dd-azure-panel', 'aria-label': __('Sign in to Azure') }, title, view.element);
    adopt(panel);
    el.replaceChildren(panel);
    view.wake();
    bin.add(() => view.rest());
    return bin.empty;
  },
};
