/** Naming clusters and removing them by the server's API, for views that know nothing of it. */
import type { NamedClusterActions } from '../form/namedclusters';
import type { Api } from '../api/api';
import { __ } from '../ui/trans';

/** Return what the launch form does with clusters. */
export function clusterActions(api: Api): NamedClusterActions {
  return {
    waiting: __('No response from the server yet'),
    kinds: () => api.clusterTypes(),
    choices: (kind, option, options) => api.choices(kind, option, options),
    add: (name, kind, options) => api.addCluster(name, kind, options),
    remove: (name) => api.removeCluster(name),
  };
}
