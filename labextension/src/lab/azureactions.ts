/** What the sign-in to Azure asks for, carried out by the server's API, for views that know nothing of it. */
import type { AzureSignIn, AzureSubscription, SignInActions } from '../azure/types';
import type { Api } from './api';
import { told } from './clusteractions';

/** Return the actions for the sign-in of this user. */
export function azureActions(api: Api): SignInActions {
  const change = (method: 'POST' | 'PATCH' | 'DELETE', where: string, body?: unknown): Promise<AzureSignIn> => told(api.send<AzureSignIn>(method, where, body));
  return {
    status: () => told(api.get<AzureSignIn>('azure')),
    signIn: (start) => change('POST', 'azure/sign-in', start),
    cancel: () => change('DELETE', 'azure/sign-in'),
    signOut: () => change('POST', 'azure/sign-out'),
    settle: (body) => change('PATCH', 'azure', body),
    subscriptions: async () => (await told(api.get<{ subscriptions: AzureSubscription[] }>('azure/subscriptions'))).subscriptions,
  };
}
