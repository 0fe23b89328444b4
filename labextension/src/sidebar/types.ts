/** State and actions of the sidebar. It knows nothing of JupyterLab or HTTP. */
import type { NodeCheck, OptionValue, ClusterNode, ClusterRow, JobRow, Plugin } from '../api/schema';

export type { NodeCheck, OptionValue, ClusterNode, ClusterRow, JobRow, Plugin };

/** Whether the shown values are up to date. Times are epoch seconds of the page's clock. */
export interface Connection {
  state: 'connecting' | 'live' | 'down';
  /** Time of the last message of the server, null before the first. */
  heard: number | null;
  /** Time of the next retry, null during a retry. */
  retry: number | null;
  /** Error message of the server; "" if it does not respond. */
  problem: string;
}

/** Actions of the page around the sidebar; a rejected promise is shown where the request was made. */
export interface Actions {
  open(job: JobRow): void;
  /** Show a study as a whole. */
  openSweep(id: string): void;
  stopSweep(id: string): Promise<unknown>;
  /** Delete a sweep that has ended, with its trials. */
  removeSweep(id: string): Promise<unknown>;
  cancel(job: JobRow, now: boolean): Promise<unknown>;
  rerun(job: JobRow): Promise<unknown>;
  remove(job: JobRow): Promise<unknown>;
  compare(ids: string[]): void;
  newJob(): void;
  quickstart: (() => void) | null;
  refresh(): void;
  settings(): void;
  kinds(): Promise<Plugin[]>;
  addCluster(name: string, kind: string, options: Record<string, unknown>): Promise<unknown>;
  /** What an option of a kind of cluster may be, where these options are filled in so far; it may take seconds. */
  choices(kind: string, option: string, options: Record<string, unknown>): Promise<OptionValue[]>;
  removeCluster(name: string): Promise<unknown>;
  /** NodeCheck every node for problems that would prevent a job; takes up to 30 seconds. */
  checkCluster(name: string): Promise<NodeCheck[]>;
  /** Request the state of a cluster now. */
  refreshCluster(name: string): Promise<unknown>;
}
