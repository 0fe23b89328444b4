/**
 * Calls of the server's HTTP API, typed. An error is an `ApiError` with what the server says: one sentence and the remedy.
 *
 * How a request travels is handed in, so nothing of `@jupyterlab` is imported here.
 */
import type { Stacks } from '../card';
import type { Changes } from '../logstore';
import type { JobDetail, OutputFile } from '../detail';
import type { CurveMessage } from '../curveview';
import type { Choice, Cluster, ClusterChecks, JobRow, MachineSet, Plugin, Prune, Pruned } from '../sidebar/types';
import { __ } from './trans';

/** Sends a request to an address below the API; rejects when the server cannot be reached. */
export type Transport = (path: string, init: RequestInit) => Promise<Response>;

/** Why the server refused, or could not be asked. `status` is 0 when it was not reached. */
export class ApiError extends Error {
  constructor(message: string, readonly type: string, readonly hint: string, readonly status: number, readonly field = '') {
    super(message);
    this.name = 'ApiError';
  }
}

export interface JobList {
  jobs: JobRow[];
  total: number;
  active: number;
  failed: number;
}

export interface JobsQuery {
  state?: string;
  q?: string;
  limit?: number;
  offset?: number;
}

/** Source text to run as a cell on every rank; `options` are those of `submit`. */
export interface NewJob {
  code: string;
  name?: string;
  notebook?: string;
  kernel_name?: string;
  options?: Record<string, unknown>;
}

export interface LogQuery {
  first?: number;
  before?: number;
  limit?: number;
  rank?: number;
}

export interface CompareQuery {
  ids: readonly string[];
  metric?: string;
  against?: 'step' | 'elapsed';
  log?: boolean;
  dark?: boolean;
  width?: number;
  height?: number;
}

type Query = Record<string, string | number | boolean | undefined>;

export class Api {
  constructor(private readonly transport: Transport, private readonly address: (path: string) => string = (path) => path) {}

  clusters = async (): Promise<Cluster[]> => (await this.get<{ clusters: Cluster[] }>('clusters')).clusters;
  cluster = (name: string): Promise<Cluster> => this.get(`clusters/${part(name)}`);
  addCluster = (name: string, kind: string, options: Record<string, unknown>): Promise<Cluster> => this.send('POST', 'clusters', { name, kind, options });
  scaleCluster = (name: string, nodes: number, minNodes?: number): Promise<Cluster> => this.send('PATCH', `clusters/${part(name)}`, { node_count: nodes, min_nodes: minNodes });
  forecast = (name: string, wanted: Record<string, unknown>): Promise<MachineSet> => this.send('POST', `clusters/${part(name)}/forecast`, { wanted });
  createMachines = (name: string, wanted: Record<string, unknown>): Promise<Cluster> => this.send('POST', `clusters/${part(name)}/machines`, { wanted });
  deleteMachines = (name: string): Promise<Cluster> => this.send('DELETE', `clusters/${part(name)}/machines`);
  choices = async (kind: string, option: string, options: Record<string, unknown>): Promise<Choice[]> => (await this.send<{ choices: Choice[] }>('POST', 'choices', { kind, option, options })).choices;
  checkCluster = (name: string): Promise<ClusterChecks> => this.send('POST', `clusters/${part(name)}/check`, {});
  removeCluster = (name: string): Promise<void> => this.send('DELETE', `clusters/${part(name)}`);

  jobs = (query: JobsQuery = {}): Promise<JobList> => this.get('jobs', { ...query });
  submit = (job: NewJob): Promise<JobRow> => this.send('POST', 'jobs', job);
  job = (id: string): Promise<JobDetail> => this.get(`jobs/${part(id)}`);
  removeJob = (id: string): Promise<void> => this.send('DELETE', `jobs/${part(id)}`);
  pruneJobs = (wanted: Prune): Promise<Pruned> => this.send('POST', 'jobs/prune', wanted);
  cancelJob = (id: string, now = false): Promise<void> => this.send('POST', `jobs/${part(id)}/cancel`, { now });
  rerunJob = (id: string): Promise<JobRow> => this.send('POST', `jobs/${part(id)}/rerun`);
  resumeJob = (id: string): Promise<JobRow> => this.send('POST', `jobs/${part(id)}/resume`);
  askStacks = (id: string): Promise<void> => this.send('POST', `jobs/${part(id)}/stacks`);
  /** The stacks with a number, the newest without one. */
  stacks = (id: string, number?: number): Promise<Stacks> => this.get(`jobs/${part(id)}/stacks`, { number });

  log = (id: string, query: LogQuery = {}): Promise<Changes> => this.get(`jobs/${part(id)}/log`, { ...query });
  curve = (id: string, query: Query = {}): Promise<CurveMessage> => this.get(`jobs/${part(id)}/curve`, query);
  outputs = async (id: string): Promise<OutputFile[]> => (await this.get<{ outputs: OutputFile[] }>(`jobs/${part(id)}/outputs`)).outputs;
  plugins = (): Promise<{ backends: Plugin[]; clusters: Plugin[] }> => this.get('plugins');

  /** Where the whole log of a job, or of one rank, can be downloaded. */
  logUrl = (id: string, rank: number | null = null): string => this.address(path(`jobs/${part(id)}/log`, { format: 'text', rank: rank ?? undefined }));
  /** Where a file that a job wrote can be downloaded. */
  outputUrl = (id: string, file: string): string => this.address(`jobs/${part(id)}/outputs/${file.split('/').map(part).join('/')}`);

  /** Where a picture that ranks have shown is. */
  pictureUrl = (id: string, number: number): string => this.address(`jobs/${part(id)}/pictures/${number}`);

  /** Ask for anything else below the API. */
  get<T>(where: string, query: Query = {}): Promise<T> {
    return this.#ask<T>(path(where, query), { method: 'GET' });
  }

  /** Change something below the API. */
  send<T>(method: 'POST' | 'PATCH' | 'DELETE', where: string, body?: unknown): Promise<T> {
    return this.#ask<T>(where, body === undefined ? { method } : { method, body: JSON.stringify(body) });
  }

  async #ask<T>(where: string, init: RequestInit): Promise<T> {
    const response = await reached(this.transport(where, init));
    if (!response.ok) throw await refusal(response);
    return (response.status === 204 || response.headers.get('Content-Length') === '0' ? undefined : await json(response)) as T;
  }
}

/** Return the response, or throw that the server was not reached; a request that was given up stays what it is. */
export async function reached(asked: Promise<Response>): Promise<Response> {
  try {
    return await asked;
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw new ApiError(__('The Jupyter server does not answer.'), 'NetworkError', __('The jobs go on. It is tried again.'), 0);
  }
}

/** Return what the server says about a request that it refused. */
export async function refusal(response: Response): Promise<ApiError> {
  const said = (await json(response)) as Partial<Record<'message' | 'type' | 'hint' | 'field', string>> | undefined;
  const message = said?.message ?? __('The server answered %1 %2.', response.status, response.statusText);
  return new ApiError(message, said?.type ?? 'HTTPError', said?.hint ?? '', response.status, said?.field ?? '');
}

async function json(response: Response): Promise<unknown> {
  const text = await response.text();
  try {
    return text ? JSON.parse(text) : undefined;
  } catch {
    return undefined;
  }
}

const part = (text: string): string => encodeURIComponent(text);

function path(where: string, query: Query): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== '');
  const words = given.map(([name, value]) => `${part(name)}=${part(typeof value === 'boolean' ? String(Number(value)) : String(value))}`);
  return words.length ? `${where}?${words.join('&')}` : where;
}
