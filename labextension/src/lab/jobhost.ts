/** What a view of one job needs of JupyterLab and of this server: messages, actions, addresses. */
import type { JobHost } from '../job/jobview';
import type { Connection } from '../job/jobpageview';
import { offers } from '../job/queue';
import type { DistDL } from './live';

/** Return the host of a job's view; `open` shows another job: a new one, or the one that this one continues. */
export function jobHost({ api, live }: DistDL, id: string, open: (id: string) => void): JobHost {
  return {
    watch: ({ log, curve }, handlers) => live.watchJob(id, { log, curve }, handlers),
    connected: () => live.state === 'live',
    cancel: (now) => api.cancelJob(id, now),
    raise: () => api.raiseJob(id),
    elsewhere: (callback) => live.watchClusters((clusters) => callback(offers(clusters))),
    move: async (target) => open((await api.moveJob(id, target)).id),
    rerun: async () => open((await api.rerunJob(id)).id),
    resume: async () => open((await api.resumeJob(id)).id),
    askStacks: () => api.askStacks(id),
    stacks: (number) => api.stacks(id, number),
    askProfile: (steps, ranks) => api.askProfile(id, steps, ranks),
    profile: (number) => api.profile(id, number),
    traceUrl: (number, rank) => api.traceUrl(id, number, rank),
    picture: (number) => api.pictureUrl(id, number),
    openJob: open,
  };
}

/** Return how the server is reached at the moment. */
export function connection({ live }: DistDL): Connection {
  return { live: live.state === 'live', lastHeard: live.lastHeard, nextTry: live.nextTry };
}
