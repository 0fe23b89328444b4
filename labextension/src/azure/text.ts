/** The names of the ways to sign in, and when to take each, in the page's language. */
import { __ } from '../ui/trans';
import type { AzureSignIn, Kind } from './types';

export function titleOf(kind: Kind): string {
  const titles: Record<Kind, string> = {
    cli: __('Azure command line'),
    device_code: __('Device code'),
    browser: __('Browser'),
    managed_identity: __('Managed identity'),
    environment: __('App registration'),
  };
  return titles[kind];
}

export function whenOf(kind: Kind): string {
  const when: Record<Kind, string> = {
    cli: __('You use az on this machine: takes the account of az login.'),
    device_code: __('Jupyter runs on another machine, for example a hub. Enter a short code in any browser.'),
    browser: __('Jupyter runs on the computer before you: a page opens there.'),
    managed_identity: __('Jupyter runs on a machine of Azure that has an identity.'),
    environment: __("For automation: an app's id and secret stand in the environment of Jupyter."),
  };
  return when[kind];
}

/** Return one line that says who is signed in. */
export function whoIs({ state, account }: AzureSignIn): string {
  if (state === 'waiting') return __('Waiting for you to sign in');
  if (account) return __('Signed in as %1', account.name || __('an account without a name'));
  return __('Not signed in');
}

/** Return "14:32" for so many seconds. */
export function clockOf(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, '0')}`;
}
