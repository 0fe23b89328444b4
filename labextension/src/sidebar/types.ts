/** What the sidebar is told by the server, and what it asks others to do. It knows nothing of JupyterLab or HTTP. */
import type { State } from '../words';

/** One job in a list. Times are epoch seconds of the server's clock, durations seconds. */
export interface JobRow {
  id: string;
  name: string;
  state: State;
  /** Why it failed or is lost, or what is waited for. */
  says: string;
  compute_target: string;
  backend: string;
  node_count: number;
  process_count_per_node: number;
  created: number;
  ended: number | null;
  last_sign: number;
  done: number | null;
  total: number | null;
  left: number | null;
  metric: string;
  value: number | null;
  spark: (number | null)[];
  failed_rank: number | null;
  notebook: string;
  can_rerun: boolean;
}

export interface ClusterNode {
  name: string;
  state: 'idle' | 'busy' | 'down' | 'unknown' | 'starting';
  detail: string;
  gpus: number;
  gpu_name: string;
  jobs: string[];
}

export interface Cluster {
  name: string;
  kind: string;
  title: string;
  detail: string;
  problem: string;
  remedy: string;
  nodes: ClusterNode[];
  active_jobs: number;
  /** A target that the user added, so it can be removed. */
  named: boolean;
  can_scale: boolean;
  node_count: number;
  max_node_count: number | null;
}

/** A kind of cluster with the JSON schema of its options. */
export interface Plugin {
  name: string;
  title: string;
  options: unknown;
  problem: string;
  remedy: string;
}

/** Whether what is shown is fresh. Moments are epoch seconds of the page's clock. */
export interface Connection {
  state: 'connecting' | 'live' | 'down';
  /** When the server was last heard, null when never. */
  heard: number | null;
  /** When it is tried again, null while that goes on. */
  retry: number | null;
  /** What the server says where it does answer, but not as it should; "" when it is just silent. */
  problem: string;
}

/** A request that was refused: one sentence and, when there is one, the remedy and the field that it is about. */
export class Refusal extends Error {
  constructor(message: string, readonly hint = '', readonly field = '') {
    super(message);
  }
}

/** What the sidebar asks of the page around it; a rejected promise is shown where the request was made. */
export interface Actions {
  open(job: JobRow): void;
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
  scaleCluster(name: string, nodes: number): Promise<unknown>;
  removeCluster(name: string): Promise<unknown>;
  checkCluster(name: string): Promise<unknown>;
}
