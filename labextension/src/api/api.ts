/**
 * Calls of the server's HTTP API, typed by its OpenAPI file. Errors are `ApiError`s with the message and the
 * remedy of the server.
 *
 * The transport is a parameter, so this module does not import `@jupyterlab`.
 */
import createClient, { type Client } from 'openapi-fetch';
import type { AzureChange, AzureSignIn, AzureSubscription, NodeCheck, CheckpointRow, OptionValue, ClusterRow, JobCheck, JobComparison, JobDetail, JobProfile, JobRow, JobStacks, LogChanges, OutputFile, paths, Plugin, SweepPanel, TrackerRecord } from './schema';
import { Refusal } from '../ui/refusal';
import { __ } from '../ui/trans';

/** Sends a request to an address; rejects when the server cannot be reached. */
export type Transport = (address: string, init: RequestInit) => Promise<Response>;

/** An error response, or a failure to reach the server, in which case `status` is 0. */
export class ApiError extends Refusal {
  constructor(message: string, readonly type: string, hint: string, readonly status: number, field = '', code = '') {
    super(message, hint, field, code);
    this.name = 'ApiError';
  }
}

type Query<Path extends keyof paths> = paths[Path] extends { get: { parameters: { query?: infer Found } } } ? NonNullable<Found> : never;
type Options = Record<string, unknown>;

const ROOT = '/distdl/api';

export class Api {
  readonly #api: Client<paths>;

  /** `base` is the server's address without a slash at its end, `address` makes one to download from of it. */
  constructor(transport: Transport, private readonly base: string, private readonly address: (plain: string) => string = (plain) => plain) {
    this.#api = createClient<paths>({ baseUrl: base, fetch: (request) => forward(request, transport), querySerializer: toQueryString });
  }

  clusters = (): Promise<ClusterRow[]> => answer(this.#api.GET(`${ROOT}/clusters`));
  cluster = (name: string): Promise<ClusterRow> => answer(this.#api.GET(`${ROOT}/clusters/{name}`, at({ name })));
  addCluster = (name: string, kind: string, options: Options): Promise<ClusterRow> => answer(this.#api.POST(`${ROOT}/clusters`, { body: { name, kind, options } }));
  choices = (kind: string, option: string, options: Options): Promise<OptionValue[]> => answer(this.#api.POST(`${ROOT}/choices`, { body: { kind, option, options } }));
  checkCluster = (name: string): Promise<NodeCheck[]> => answer(this.#api.POST(`${ROOT}/clusters/{name}/check`, at({ name })));
  removeCluster = (name: string): Promise<unknown> => answer(this.#api.DELETE(`${ROOT}/clusters/{name}`, at({ name })));
  clusterTypes = async (): Promise<Plugin[]> => (await answer(this.#api.GET(`${ROOT}/plugins`))).filter(({ kind }) => kind === 'clusters');

  // openapi-fetch makes lists of the API's tuples, here and in a log.
  job = async (id: string): Promise<JobDetail> => (await answer(this.#api.GET(`${ROOT}/jobs/{id}`, at({ id })))) as JobDetail;
  removeJob = (id: string): Promise<unknown> => answer(this.#api.DELETE(`${ROOT}/jobs/{id}`, at({ id })));
  raiseJob = (id: string): Promise<unknown> => answer(this.#api.POST(`${ROOT}/jobs/{id}/priority`, { ...at({ id }), body: { priority: null } }));
  /** Start a waiting job on another cluster instead. */
  moveJob = (id: string, compute_target: string): Promise<JobRow> => answer(this.#api.POST(`${ROOT}/jobs/{id}/move`, { ...at({ id }), body: { compute_target } }));
  cancelJob = (id: string, now = false): Promise<unknown> => answer(this.#api.POST(`${ROOT}/jobs/{id}/cancel`, { ...at({ id }), body: { now } }));
  rerunJob = (id: string): Promise<JobRow> => answer(this.#api.POST(`${ROOT}/jobs/{id}/rerun`, at({ id })));
  checkpoints = (id: string): Promise<CheckpointRow[]> => answer(this.#api.GET(`${ROOT}/jobs/{id}/checkpoints`, at({ id })));
  trackers = (id: string): Promise<TrackerRecord[]> => answer(this.#api.GET(`${ROOT}/jobs/{id}/tracking`, at({ id })));
  forkJob = (id: string, path: string): Promise<JobRow> => answer(this.#api.POST(`${ROOT}/jobs/{id}/fork`, { ...at({ id }), body: { path } }));
  /** NodeCheck the code of a job; the answer is the first of its two runs. */
  checkJob = (id: string): Promise<JobRow> => answer(this.#api.POST(`${ROOT}/jobs/{id}/check`, at({ id })));
  checkOfJob = async (id: string): Promise<JobCheck> => (await answer(this.#api.GET(`${ROOT}/jobs/{id}/check`, at({ id })))) as JobCheck;
  resumeJob = (id: string): Promise<JobRow> => answer(this.#api.POST(`${ROOT}/jobs/{id}/resume`, at({ id })));
  askStacks = (id: string): Promise<unknown> => answer(this.#api.POST(`${ROOT}/jobs/{id}/stacks`, at({ id })));
  /** The stacks with a number, the newest without one. */
  stacks = (id: string, number?: number): Promise<JobStacks> => answer(this.#api.GET(`${ROOT}/jobs/{id}/stacks`, { params: { path: { id }, query: number === undefined ? {} : { number } } }));
  askProfile = (id: string, steps: number, ranks: number[] | null): Promise<unknown> => answer(this.#api.POST(`${ROOT}/jobs/{id}/profile`, { ...at({ id }), body: { steps, ranks } }));
  profile = async (id: string, number: number): Promise<JobProfile> => (await answer(this.#api.GET(`${ROOT}/jobs/{id}/profile`, { params: { path: { id }, query: { number } } }))) as JobProfile;
  log = async (id: string, query: Query<'/distdl/api/jobs/{id}/log'> = {}): Promise<LogChanges> => (await answer(this.#api.GET(`${ROOT}/jobs/{id}/log`, { params: { path: { id }, query } }))) as LogChanges;
  outputs = (id: string): Promise<OutputFile[]> => answer(this.#api.GET(`${ROOT}/jobs/{id}/outputs`, at({ id })));
  sweep = async (id: string): Promise<SweepPanel> => (await answer(this.#api.GET(`${ROOT}/sweeps/{id}`, at({ id })))) as SweepPanel;
  stopSweep = async (id: string): Promise<SweepPanel> => (await answer(this.#api.POST(`${ROOT}/sweeps/{id}/stop`, at({ id })))) as SweepPanel;
  resumeSweep = async (id: string): Promise<SweepPanel> => (await answer(this.#api.POST(`${ROOT}/sweeps/{id}/resume`, at({ id })))) as SweepPanel;
  removeSweep = (id: string): Promise<unknown> => answer(this.#api.DELETE(`${ROOT}/sweeps/{id}`, at({ id })));
  runBest = (id: string, processes: number): Promise<JobRow> => answer(this.#api.POST(`${ROOT}/sweeps/{id}/best`, { ...at({ id }), body: { processes } }));
  compare = (query: Query<'/distdl/api/compare'>): Promise<JobComparison> => answer(this.#api.GET(`${ROOT}/compare`, { params: { query } }));


  azure = (): Promise<AzureSignIn> => answer(this.#api.GET(`${ROOT}/azure`));
  changeAzure = (change: AzureChange): Promise<AzureSignIn> => answer(this.#api.PATCH(`${ROOT}/azure`, { body: change }));
  signIn = (start: AzureChange): Promise<AzureSignIn> => answer(this.#api.POST(`${ROOT}/azure/sign-in`, { body: start }));
  cancelSignIn = (): Promise<AzureSignIn> => answer(this.#api.DELETE(`${ROOT}/azure/sign-in`));
  signOut = (): Promise<AzureSignIn> => answer(this.#api.POST(`${ROOT}/azure/sign-out`));
  subscriptions = (): Promise<AzureSubscription[]> => answer(this.#api.GET(`${ROOT}/azure/subscriptions`));

  /** Where the whole log of a job, or of one rank, can be downloaded. */
  logUrl = (id: string, rank: number | null = null): string => this.#download(`jobs/${part(id)}/log?${toQueryString({ format: 'text', rank })}`);
  /** Where a file that a job wrote can be downloaded. */
  outputUrl = (id: string, file: string): string => this.#download(`jobs/${part(id)}/outputs/${file.split('/').map(part).join('/')}`);
  /** Where a picture that ranks have shown is. */
  traceUrl = (id: string, number: number, rank: number): string => this.#download(`jobs/${part(id)}/profile/${number}/trace?${toQueryString({ rank })}`);
  pictureUrl = (id: string, number: number): string => this.#download(`jobs/${part(id)}/pictures/${number}`);

  #download(path: string): string {
    return this.address(`${this.base}${ROOT}/${path}`);
  }
}

/** Return the parameters of a request whose address has a gap. */
const at = <Gap>(path: Gap): { params: { path: Gap } } => ({ params: { path } });

async function forward(request: Request, transport: Transport): Promise<Response> {
  const { method, signal, url } = request;
  const body = method === 'GET' ? '' : await request.text();
  return transport(url, { method, signal, ...(body && { body }) });
}

/** Return the data of a response, or throw its error. */
async function answer<T>(request: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await reached(request);
  if (!response.ok) throw refused(response, error);
  return data as T;
}

/** Return the response, or throw an `ApiError` if the server was not reached; an abort is rethrown unchanged. */
export async function reached<T>(request: Promise<T>): Promise<T> {
  try {
    return await request;
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw new ApiError(__('The Jupyter server is not responding.'), 'NetworkError', __('Jobs keep running.'), 0);
  }
}

/** Return the error of a response that is not successful. */
export async function refusal(response: Response): Promise<ApiError> {
  return refused(response, await response.json().catch(() => undefined));
}

function refused(response: Response, body: unknown): ApiError {
  const { message, type, hint, field, code } = (body ?? {}) as Partial<Record<'message' | 'type' | 'hint' | 'field' | 'code', string>>;
  const words = message === undefined ? __('The server responded with %1 %2.', response.status, response.statusText) : message;
  return new ApiError(words, type ?? 'HTTPError', hint ?? '', response.status, field ?? '', code ?? '');
}

const part = (text: string): string => encodeURIComponent(text);

/** Return query parameters: booleans as 1 and 0, without empty values. */
function toQueryString(query: object): string {
  const entries = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return entries.map(([name, value]) => `${part(name)}=${part(typeof value === 'boolean' ? String(Number(value)) : String(value))}`).join('&');
}
