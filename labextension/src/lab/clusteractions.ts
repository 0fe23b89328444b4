/** Naming clusters and removing them by the server's API, for views that know nothing of it. */
import type { NamedClusterActions } from '../form/namedclusters';
import { Refusal } from '../ui/refusal';
import { ApiError, type Api } from '../api/api';
import { __ } from '../ui/trans';

/** Return what a request gives; a refusal of the server becomes one that views can show. */
export async function answerOf<T>(request: Promise<T>): Promise<T> {
  try {
    return await request;
  } catch (error) {
    if (error instanceof ApiError) throw new Refusal(error.message, error.hint, error.field);
    throw error;
  }
}

/** Return what the launch form does with clusters. */
export function clusterActions(api: Api): NamedClusterActions {
  return {
    waiting: __('No answer from the server yet'),
    kinds: async () => (await answerOf(api.plugins())).clusters,
    choices: (kind, option, options) => answerOf(api.choices(kind, option, options)),
    add: (name, kind, options) => answerOf(api.addCluster(name, kind, options)),
    remove: (name) => answerOf(api.removeCluster(name)),
  };
}
