/** The panel "Sign in to Azure" as a widget: its kernel answers what JupyterLab's sidebar asks the server. */
import { connect, type Ask, type Model } from './kernel';
import { SignIn } from '../azure/signin';
import { adopt, h } from '../ui/dom';
import { icon } from '../ui/icons';
import type { AzureSignIn, AzureSubscription, SignInActions } from '../azure/types';
import { __ } from '../ui/trans';

/** Draw the sign-in into an element; returns the function that removes it. */
export function azureSignIn(model: Model, el: HTMLElement): () => void {
  const { ask, dispose } = connect(model);
  const view = new SignIn(kernelActions(ask));
  const title = h('h2', { class: 'dd-title dd-row' }, icon('cloud'), __('Sign in to Azure'));
  const panel = h('section', { class: 'dd-azure-panel', 'aria-label': __('Sign in to Azure') }, title, view.element);
  adopt(panel);
  el.replaceChildren(panel);
  view.wake();
  return () => {
    view.rest();
    dispose();
  };
}

/** Return the actions for a function that asks the kernel. */
function kernelActions(ask: Ask): SignInActions {
  const request = (what: string, given: Record<string, unknown> = {}): Promise<AzureSignIn> => ask(`azure.${what}`, given) as Promise<AzureSignIn>;
  return {
    status: () => request('status'),
    signIn: (start) => request('sign_in', { ...start }),
    cancel: () => request('cancel'),
    signOut: () => request('sign_out'),
    settle: (change) => request('settings', { ...change }),
    subscriptions: () => ask('azure.subscriptions') as Promise<AzureSubscription[]>,
  };
}
