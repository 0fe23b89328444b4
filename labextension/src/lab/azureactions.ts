/** What the sign-in to Azure asks for, carried out by the server's API, for views that know nothing of it. */
import type { SignInActions } from '../azure/types';
import type { Api } from '../api/api';

/** Return the actions for the sign-in of this user. */
export function azureActions(api: Api): SignInActions {
  return {
    status: () => api.azure(),
    signIn: (start) => api.signIn(start),
    cancel: () => api.cancelSignIn(),
    signOut: () => api.signOut(),
    settle: (body) => api.changeAzure(body),
    subscriptions: () => api.subscriptions(),
  };
}
