/** State and requests of the panel "Sign in to Azure". It knows neither HTTP nor a kernel. */
import type { AzureChange, AzureSignIn, AzureSubscription } from '../api/schema';

export type { AzureSignIn, AzureSubscription };
export type Kind = NonNullable<AzureChange['credential']>;
export type Start = AzureChange & { credential: Kind };
export type Change = Partial<AzureChange>;

/** A rejected promise is shown where the request was made. No answer holds a token. */
export interface SignInActions {
  status(): Promise<AzureSignIn>;
  signIn(start: Start): Promise<AzureSignIn>;
  cancel(): Promise<AzureSignIn>;
  signOut(): Promise<AzureSignIn>;
  settle(change: Change): Promise<AzureSignIn>;
  subscriptions(): Promise<AzureSubscription[]>;
}
