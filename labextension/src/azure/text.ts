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
    cli: __('Use the account of az login on this machine.'),
    device_code: __('Jupyter runs on another machine, for example a hub. Enter a short code in any browser.'),
    browser: __('Jupyter runs on this computer: a page opens in its browser.'),
    managed_identity: __('Jupyter runs on an Azure machine with a managed identity.'),
    environment: __("For automation: an app's id and secret are set in the environment of Jupyter."),
  };
  return when[kind];
}

/** Return one line that says who is signed in. */
export function whoIs({ state, account }: AzureSignIn): string {
  if (state === 'waiting') return __('Waiting for you to sign in');
  if (account) return __('Signed in as %1', account.name || __('an unnamed account'));
  return __('Not signed in');
}

/** Return "14:32" for so many seconds. */
export function clockOf(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, '0')}`;
}
