/** What the sign-in to Azure asks for, carried out by the server's API, for views that know nothing of it. */
import type { SignInActions } from '../azure/types';
import type { Api } from '../api/api';
import { told } from './clusteractions';

/** Return the actions for the sign-in of this user. */
export function azureActions(api: Api): SignInActions {
  return {
    status: () => told(api.azure()),
    signIn: (start) => told(api.signIn(start)),
    cancel: () => told(api.cancelSignIn()),
    signOut: () => told(api.signOut()),
    settle: (body) => told(api.changeAzure(body)),
    subscriptions: () => told(api.subscriptions()),
  };
}
