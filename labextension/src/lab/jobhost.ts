/** What a view of one job needs of JupyterLab and of this server: messages, actions, addresses. */
import type { JobHost } from '../jobview';
import type { Connection } from '../jobpageview';
import type { DistDL } from './live';

/** Return the host of a job's view; `rerun` is told of the new job. */
export function jobHost({ api, live }: DistDL, id: string, rerun: (id: string) => void): JobHost {
  return {
    watch: ({ log, curve }, handlers) => live.watchJob(id, { log, curve }, handlers),
    connected: () => live.state === 'live',
    cancel: (now) => api.cancelJob(id, now),
    rerun: async () => rerun((await api.rerunJob(id)).id),
  };
}

/** Return how the server is reached at the moment. */
export function connection({ live }: DistDL): Connection {
  return { live: live.state === 'live', lastHeard: live.lastHeard, nextTry: live.nextTry };
}
