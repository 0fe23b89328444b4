/** What the sign-in asks for, carried out by a kernel: `views/azure.py` answers. */
import type { Ask } from '../widgets/kernel';
import type { AzureSignIn, AzureSubscription, SignInActions } from './types';

/** Return the actions for a function that asks the kernel. */
export function kernelActions(ask: Ask): SignInActions {
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
