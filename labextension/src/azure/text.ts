/** The names of the ways to sign in, and when to take each, in the page's language. */
import { __ } from '../ui/trans';
import type { AzureSignIn, Kind } from './types';

/** The sign-in methods in the order in which they are offered: title, and when to use it. */
export const METHODS = (): [Kind, string, string][] => [
  ['device_code', __('Device code'), __('Use this if Jupyter runs on another machine, for example on a hub. Enter a short code in any browser.')],
  ['browser', __('Browser'), __('Use this if Jupyter runs on this computer. The sign-in page opens in your browser.')],
  ['default', __('Default credentials'), __("Use DefaultAzureCredential: an app's environment variables, a managed identity, az login and others.")],
];

export function titleOf(kind: string): string {
  return METHODS().find(([name]) => name === kind)?.[1] ?? kind;
}

/** Return one line with the signed-in account. */
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
