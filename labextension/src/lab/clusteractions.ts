/** Naming clusters and removing them by the server's API, for views that know nothing of it. */
import type { ClusterActions } from '../clusterform';
import { Refusal } from '../refusal';
import { ApiError, type Api } from './api';

/** Return what a request gives; a refusal of the server becomes one that views can show. */
export async function told<T>(request: Promise<T>): Promise<T> {
  try {
    return await request;
  } catch (error) {
    if (error instanceof ApiError) throw new Refusal(error.message, error.hint, error.field);
    throw error;
  }
}

/** Return what a form does with clusters. */
export function clusterActions(api: Api): ClusterActions {
  return {
    kinds: async () => (await told(api.plugins())).clusters,
    add: (name, kind, options) => told(api.addCluster(name, kind, options)),
    remove: (name) => told(api.removeCluster(name)),
  };
}
