/** What the sign-in to Azure asks for, carried out by the server's API, for views that know nothing of it. */
import type { SignInActions } from '../azure/types';
import type { Api } from '../api/api';
import { answerOf } from './clusteractions';

/** Return the actions for the sign-in of this user. */
export function azureActions(api: Api): SignInActions {
  return {
    status: () => answerOf(api.azure()),
    signIn: (start) => answerOf(api.signIn(start)),
    cancel: () => answerOf(api.cancelSignIn()),
    signOut: () => answerOf(api.signOut()),
    settle: (body) => answerOf(api.changeAzure(body)),
    subscriptions: () => answerOf(api.subscriptions()),
  };
}
