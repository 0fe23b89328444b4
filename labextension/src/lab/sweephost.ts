/** What a view of a sweep asks for, over the server's API and JupyterLab's commands. */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { SweepHost } from '../job/sweep';
import { OPEN_JOB } from './jobpage';
import type { DistDL } from './live';

export function sweepHost({ commands }: JupyterFrontEnd, { api, live }: DistDL, id: string): SweepHost {
  const openJob = (job: string): void => void commands.execute(OPEN_JOB, { id: job });
  return {
    read: () => api.sweep(id),
    stop: () => api.stopSweep(id),
    resume: () => api.resumeSweep(id),
    runBest: async (processes) => {
      const job = await api.runBest(id, processes);
      live.tryNow();
      openJob(job.id);
    },
    openJob,
  };
}
