/**
 * Live updates of jobs and clusters: one WebSocket for everything that any view watches.
 *
 * * Everything watched is one subscription. When it changes, a new one continues after the last message: each
 *   message has a key, each log a mark, so nothing is sent twice and no row is lost, also when the server was started
 *   again in between.
 * * A view that starts watching what others already watch gets their state at once.
 * * A connection that breaks, or is silent too long, is made anew, later and later. Why it cannot be made, a browser does
 *   not say of a WebSocket: the same address is asked without one.
 *
 * How requests travel is handed in, so nothing of `@jupyterlab` is imported here.
 */
import type { Choice } from '../job/picker';
import type { Handlers, Watch, JobRequest } from '../job/jobview';
import { LogStore, type Older } from '../job/logstore';
import type { Cluster, CurveMessage, JobMessage, JobRow, JobSubscription, Message, ResourcesMessage, Subscription } from './schema';
import { ApiError, reached, refusal, type Transport } from './api';

/** All jobs, newest first; the counts are of all. */
export interface Jobs {
  rows: JobRow[];
  total: number;
  active: number;
  failed: number;
}

export type State = 'live' | 'connecting' | 'down';

/** Seconds of silence after which a connection counts as broken, and the first and the longest pause before the next try. */
export interface Timeouts {
  silence: number;
  retry: readonly [number, number];
}

/** What is used of a WebSocket. */
export interface Socket {
  readonly readyState: number;
  onopen: ((event: never) => unknown) | null;
  onclose: ((event: never) => unknown) | null;
  onerror: ((event: never) => unknown) | null;
  onmessage: ((event: never) => unknown) | null;
  send(text: string): void;
  close(): void;
}

/** Opens a WebSocket at an address of the API. */
export type Dial = (path: string) => Socket;

const TIMEOUTS: Timeouts = { silence: 20, retry: [0.5, 8] };
const ADDRESS = 'events';
/** `WebSocket.OPEN`. */
const OPEN = 1;
/** Milliseconds in which requests are batched, and between two heartbeat checks. */
const [GATHER, LOOK] = [50, 500];

type Of<T extends Message['type']> = Extract<Message, { type: T }>;

/** One view that watches a job. */
interface Viewer {
  request: JobRequest;
  handlers: Handlers;
}

/** What is known of a job that somebody watches. */
class Watched {
  readonly viewers = new Set<Viewer>();
  readonly store = new LogStore();
  readonly curves = new Map<string, CurveMessage>();
  job: JobMessage | null = null;
  /** Resources of its ranks, sent to viewers that may read its log. */
  resources: ResourcesMessage | null = null;
  mark = 0;
  /** Whether the log has come since it was asked for. */
  logged = false;
  gone = false;

  get wantsLog(): boolean {
    return [...this.viewers].some(({ request }) => request.log);
  }

  /** The curves that are wanted, each once. */
  get wanted(): Map<string, Choice> {
    const requests = [...this.viewers].flatMap(({ request }) => (request.curve ? [request.curve] : []));
    return new Map(requests.map((request) => [curveName(request), request]));
  }
}

export class Live {
  readonly #jobWatchers = new Set<(jobs: Jobs) => void>();
  readonly #clusterWatchers = new Set<(clusters: Cluster[]) => void>();
  readonly #watched = new Map<string, Watched>();
  readonly #stateWatchers = new Set<() => void>();
  #jobs: { list: Map<string, JobRow>; value: Jobs; key: string } | null = null;
  #clusters: { value: Cluster[]; key: string } | null = null;
  #state: State = 'connecting';
  #connection: Connection | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** What was asked for, and the number of that subscription: messages before its welcome belong to an older one. */
  #asked = '';
  #number = 0;
  #welcome = false;
  #failures = 0;
  #server = '';

  /** When the server was last heard, and when it is tried again while it is down: epoch seconds of the page's clock. */
  lastHeard: number | null = null;
  nextTry: number | null = null;
  /** Why the server does not answer as it should, null while it does. */
  problem: ApiError | null = null;

  constructor(private readonly dial: Dial, private readonly transport: Transport, private readonly older: (id: string) => Older, private readonly timeouts: Timeouts = TIMEOUTS) {}

  get state(): State {
    return this.#state;
  }

  /** Watch `state`, `nextTry` and `problem`. */
  onState(changed: () => void): Watch {
    return member(this.#stateWatchers, changed, () => undefined);
  }

  /** Watch all jobs; called at once if they are known, and after each change. */
  watchJobs(watcher: (jobs: Jobs) => void): Watch {
    if (this.#jobs) later(() => this.#jobWatchers.has(watcher) && this.#jobs && watcher(this.#jobs.value));
    return this.#watch(this.#jobWatchers, watcher);
  }

  /** Watch all clusters; called at once if they are known, and after each change. */
  watchClusters(watcher: (clusters: Cluster[]) => void): Watch {
    if (this.#clusters) later(() => this.#clusterWatchers.has(watcher) && this.#clusters && watcher(this.#clusters.value));
    return this.#watch(this.#clusterWatchers, watcher);
  }

  /** Watch what is requested of one job; known values are sent at once, but never before this returned. */
  watchJob(id: string, request: JobRequest, handlers: Handlers): Watch {
    const watched = this.#watched.get(id) ?? new Watched();
    this.#watched.set(id, watched);
    const viewer = { request, handlers };
    watched.viewers.add(viewer);
    later(() => watched.viewers.has(viewer) && catchUp(watched, viewer));
    this.#requestsChanged();
    return once(() => {
      watched.viewers.delete(viewer);
      this.#requestsChanged();
    });
  }

  #watch<T>(watchers: Set<T>, watcher: T): Watch {
    const watch = member(watchers, watcher, () => this.#requestsChanged());
    this.#requestsChanged();
    return watch;
  }

  /** Try now to reach the server instead of waiting. */
  tryNow(): void {
    if (this.#state !== 'live') this.#connect();
  }

  /** End everything. */
  dispose(): void {
    this.#watched.clear();
    this.#jobWatchers.clear();
    this.#clusterWatchers.clear();
    this.#stateWatchers.clear();
    this.#disconnect();
  }

  // ---- the connection ----

  #requestsChanged(): void {
    if (this.#state === 'down' && this.#timer !== undefined) return; // the next try asks for what is wanted then
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      if (!this.#connection) this.#connect();
      else if (this.#wanted() !== this.#asked) this.#ask();
    }, GATHER);
  }

  /** What is wanted, without what is known of it: the same text means that the last subscription will do. */
  #wanted(): string {
    const jobs = [...this.#watched].filter(([, watched]) => watched.viewers.size).map(([id, watched]) => [id, watched.wantsLog, [...watched.wanted.keys()].sort()]);
    if (!jobs.length && !this.#jobWatchers.size && !this.#clusterWatchers.size) return '';
    return JSON.stringify([this.#jobWatchers.size > 0, this.#clusterWatchers.size > 0, jobs.sort()]);
  }

  /** Let go of what nobody watches. Not before a new subscription: the last one would not tell it again. */
  #forget(): void {
    if (!this.#jobWatchers.size) this.#jobs = null;
    if (!this.#clusterWatchers.size) this.#clusters = null;
    for (const [id, watched] of this.#watched) {
      if (!watched.viewers.size) this.#watched.delete(id);
      else if (!watched.wantsLog) forgetLog(watched);
    }
  }

  #disconnect(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#connection?.close();
    this.#connection = null;
  }

  #connect(): void {
    this.#disconnect();
    if (!this.#wanted()) {
      this.#forget();
      return;
    }
    if (this.#state === 'down') this.#setState('connecting');
    this.#connection = new Connection(this.dial(ADDRESS), this.timeouts.silence, {
      opened: () => this.#ask(),
      received: (message) => this.#take(message),
      ended: (answered) => this.#broke(answered),
    });
  }

  /** Say what is wanted, in place of what was; who wants nothing needs no connection. */
  #ask(): void {
    this.#forget();
    this.#asked = this.#wanted();
    if (!this.#asked) this.#disconnect();
    if (!this.#connection?.open) return;
    const job = Object.fromEntries([...this.#watched].map(([id, watched]) => [id, subscriptionOf(watched)]));
    const keys = { jobs_key: this.#jobs?.key ?? '', clusters_key: this.#clusters?.key ?? '' };
    this.#number += 1;
    this.#welcome = false;
    const body: Subscription = { number: this.#number, jobs: this.#jobWatchers.size > 0, clusters: this.#clusterWatchers.size > 0, ...keys, job };
    this.#connection.say(body);
  }

  #broke(answered: boolean): void {
    this.#disconnect();
    const [first, longest] = this.timeouts.retry;
    const pause = Math.min(longest, first * 2 ** this.#failures) * (0.8 + 0.4 * Math.random());
    this.#failures += 1;
    this.nextTry = Date.now() / 1000 + pause;
    this.#timer = setTimeout(() => this.#connect(), pause * 1000);
    this.#setState('down');
    if (!answered) void this.#findReason();
  }

  async #findReason(): Promise<void> {
    const found = await reached(this.transport(ADDRESS, { cache: 'no-store' })).then(refusal, (error: unknown) => error);
    if (this.#state === 'live' || !(found instanceof ApiError)) return;
    this.problem = found;
    notify(this.#stateWatchers, (changed) => changed());
  }

  #setState(state: State): void {
    if (state !== 'down') this.nextTry = null;
    if (state === this.#state && state !== 'down') return;
    this.#state = state;
    notify(this.#stateWatchers, (changed) => changed());
  }

  // ---- messages ----

  #take(message: Message): void {
    this.lastHeard = Date.now() / 1000;
    if (message.type === 'refused') console.error(message.error.message);
    if (message.type === 'hello') this.#takeWelcome(message);
    if (!this.#welcome) return;
    if (message.type === 'jobs') this.#takeJobs(message);
    else if (message.type === 'clusters') this.#takeClusters(message);
    else if (message.type === 'job' || message.type === 'log' || message.type === 'curve' || message.type === 'resources' || message.type === 'gone') this.#takeJob(message);
  }

  /** A job that another server process did not find may be there now. */
  #takeWelcome({ number, server_id }: Of<'hello'>): void {
    this.#welcome = number === this.#number;
    if (!this.#welcome) return;
    if (this.#server && server_id !== this.#server) for (const watched of this.#watched.values()) watched.gone = false;
    this.#server = server_id;
    this.#failures = 0;
    this.problem = null;
    this.#setState('live');
  }

  #takeJobs(message: Of<'jobs'>): void {
    const { rows, removed, whole, key, total, active, failed } = message;
    const list = whole || !this.#jobs ? new Map<string, JobRow>() : this.#jobs.list;
    for (const id of removed) list.delete(id);
    for (const row of rows) list.set(row.id, row);
    // Ids sort by the time of their making.
    const newest = [...list.values()].sort((a, b) => (a.id < b.id ? 1 : -1));
    const value = { rows: newest, total, active, failed };
    this.#jobs = { list, value, key };
    notify(this.#jobWatchers, (watcher) => watcher(value));
  }

  #takeClusters({ clusters, key }: Of<'clusters'>): void {
    this.#clusters = { value: clusters, key };
    notify(this.#clusterWatchers, (watcher) => watcher(clusters));
  }

  #takeJob(message: Of<'job' | 'log' | 'curve' | 'resources' | 'gone'>): void {
    const watched = this.#watched.get(message.id);
    if (!watched) return;
    const viewers = [...watched.viewers];
    if (message.type === 'job') {
      watched.job = message;
      watched.gone = false;
      notify(viewers, ({ handlers }) => handlers.job?.(message));
    } else if (message.type === 'gone') {
      watched.gone = true;
      notify(viewers, ({ handlers }) => handlers.gone?.());
    } else if (message.type === 'resources') {
      watched.resources = message;
      notify(viewers.filter(({ request }) => request.log), ({ handlers }) => handlers.resources?.(message));
    } else if (message.type === 'curve') this.#takeCurve(watched, message);
    else this.#takeLog(message.id, watched, message);
  }

  #takeCurve(watched: Watched, message: Of<'curve'>): void {
    const name = curveName({ ...message, metric: message.asked });
    watched.curves.set(name, message);
    const viewers = [...watched.viewers].filter(({ request }) => request.curve && curveName(request.curve) === name);
    notify(viewers, ({ handlers }) => handlers.curve?.(message));
  }

  #takeLog(id: string, watched: Watched, message: Of<'log'>): void {
    const news = message.whole ? { ...message, older: this.older(id) } : message;
    watched.store.apply(news, message.whole);
    watched.mark = message.mark;
    watched.logged = true;
    notify([...watched.viewers].filter(({ request }) => request.log), ({ handlers }) => handlers.log?.(news));
  }
}

/** Tell a view what is known already of its job. */
function catchUp(watched: Watched, { request, handlers }: Viewer): void {
  if (watched.job) handlers.job?.(watched.job);
  if (request.log && watched.logged) handlers.log?.({ ...watched.store.snapshot(), whole: true });
  const curve = request.curve && watched.curves.get(curveName(request.curve));
  if (curve) handlers.curve?.(curve);
  if (request.log && watched.resources) handlers.resources?.(watched.resources);
  if (watched.gone) handlers.gone?.();
}

function forgetLog(watched: Watched): void {
  watched.store.apply({ rows: [], open: [], first: 0, total: 0, errors: {} }, true);
  watched.mark = 0;
  watched.logged = false;
}

/** What to ask for of a job, with what is known of it. */
function subscriptionOf(watched: Watched): JobSubscription {
  const wanted = watched.wanted;
  for (const name of watched.curves.keys()) if (!wanted.has(name)) watched.curves.delete(name);
  const curves = [...wanted].map(([name, choice]) => ({ ...choice, key: watched.curves.get(name)?.key ?? '' }));
  return { log: watched.wantsLog ? { mark: watched.mark } : null, curves, key: watched.gone ? 'gone' : (watched.job?.key ?? ''), resources: watched.wantsLog };
}

const curveName = ({ metric, mode, log }: Omit<Choice, 'mode'> & { mode: string }): string => JSON.stringify([metric, mode, log]);

interface ConnectionListener {
  opened: () => void;
  received: (message: Message) => void;
  /** `answered` says whether the server has spoken. Not called for a connection that was closed here. */
  ended: (answered: boolean) => void;
}

/** One WebSocket, until it ends or is silent too long. */
class Connection {
  #answered = false;
  #since = Date.now();
  readonly #timer: ReturnType<typeof setInterval>;

  constructor(private readonly socket: Socket, silence: number, listener: ConnectionListener) {
    this.#timer = setInterval(() => {
      if (Date.now() - this.#since > silence * 1000) this.#end(listener);
    }, LOOK);
    socket.onopen = listener.opened;
    // Not everywhere does an error close the socket.
    socket.onclose = socket.onerror = () => this.#end(listener);
    socket.onmessage = ({ data }: MessageEvent<string>) => {
      this.#answered = true;
      this.#since = Date.now();
      listener.received(JSON.parse(data) as Message);
    };
  }

  get open(): boolean {
    return this.socket.readyState === OPEN;
  }

  say(subscription: Subscription): void {
    this.socket.send(JSON.stringify(subscription));
  }

  close(): void {
    clearInterval(this.#timer);
    this.socket.onopen = this.socket.onclose = this.socket.onerror = this.socket.onmessage = null;
    this.socket.close();
  }

  #end(listener: ConnectionListener): void {
    this.close();
    listener.ended(this.#answered);
  }
}

/** Tell everybody, whatever one of them does with it. */
function notify<T>(watchers: Iterable<T>, call: (watcher: T) => void): void {
  for (const watcher of [...watchers]) {
    try {
      call(watcher);
    } catch (error) {
      console.error(error);
    }
  }
}

const later = (work: () => unknown): void => queueMicrotask(() => void work());

function once(undo: () => void): Watch {
  let done = false;
  return {
    dispose: () => {
      if (!done) undo();
      done = true;
    },
  };
}

function member<T>(all: Set<T>, one: T, gone: () => void): Watch {
  all.add(one);
  return once(() => {
    all.delete(one);
    gone();
  });
}
