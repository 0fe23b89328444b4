/**
 * Live updates of jobs and clusters: one WebSocket for everything that any view watches.
 *
 * * Everything watched is one subscription. When it changes, a new one continues after the last message: each
 *   message has a key and each log a mark, so nothing is sent twice and no row is lost, even if the server restarts in
 *   between.
 * * A new view receives the cached state at once if another view watches the same thing.
 * * After a failure or a timeout it reconnects with exponential backoff. Browsers do not report why a WebSocket failed, so
 *   an HTTP request to the same address finds the reason.
 *
 * The transport is a parameter, so this module does not import `@jupyterlab`.
 */
import type { Choice } from '../job/picker';
import type { Handlers, Watch, JobRequest } from '../job/jobview';
import { LogStore, type Older } from '../job/logstore';
import type { ClusterRow, CurveMessage, JobMessage, JobRow, JobSubscription, Message, ResourcesMessage, Subscription } from './schema';
import { ApiError, reached, refusal, type Transport } from './api';

/** All jobs, newest first, with total counts. */
export type State = 'live' | 'connecting' | 'down';

/** Heartbeat timeout, and first and longest retry delay, in seconds. */
export interface Timeouts {
  silence: number;
  retry: readonly [number, number];
}

/** The part of the WebSocket interface used here. */
export interface Socket {
  readonly readyState: number;
  onopen: ((event: never) => unknown) | null;
  onclose: ((event: never) => unknown) | null;
  onerror: ((event: never) => unknown) | null;
  onmessage: ((event: never) => unknown) | null;
  send(text: string): void;
  close(): void;
}

/** Opens a WebSocket at a path of the API. */
export type Dial = (path: string) => Socket;

const TIMEOUTS: Timeouts = { silence: 20, retry: [0.5, 8] };
const ADDRESS = 'events';
/** `WebSocket.OPEN`. */
const OPEN = 1;
/** Milliseconds in which requests are batched, and between two heartbeat checks. */
const [BATCH, CHECK] = [50, 500];

type Of<T extends Message['type']> = Extract<Message, { type: T }>;

/** One view that watches a job. */
interface Viewer {
  request: JobRequest;
  handlers: Handlers;
}

/** Cached state of a watched job. */
class JobState {
  readonly viewers = new Set<Viewer>();
  readonly store = new LogStore();
  readonly curves = new Map<string, CurveMessage>();
  job: JobMessage | null = null;
  /** Resources of its ranks, for viewers that may read its log. */
  resources: ResourcesMessage | null = null;
  mark = 0;
  /** Whether the log has been received since it was requested. */
  logged = false;
  gone = false;

  get wantsLog(): boolean {
    return [...this.viewers].some(({ request }) => request.log);
  }

  /** The requested curves, without duplicates. */
  get wanted(): Map<string, Choice> {
    const requests = [...this.viewers].flatMap(({ request }) => (request.curve ? [request.curve] : []));
    return new Map(requests.map((request) => [curveName(request), request]));
  }
}

export class Live {
  readonly #jobWatchers = new Set<(jobs: JobRow[]) => void>();
  readonly #clusterWatchers = new Set<(clusters: ClusterRow[]) => void>();
  readonly #watched = new Map<string, JobState>();
  readonly #stateWatchers = new Set<() => void>();
  #jobs: { list: Map<string, JobRow>; value: JobRow[]; key: string } | null = null;
  #clusters: { value: ClusterRow[]; key: string } | null = null;
  #state: State = 'connecting';
  #connection: Connection | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** Key and number of the last subscription; messages before its welcome belong to an older one. */
  #sent = '';
  #number = 0;
  #welcome = false;
  #failures = 0;
  #server = '';

  /** Times of the last message and of the next retry, in epoch seconds of the page's clock. */
  lastHeard: number | null = null;
  nextTry: number | null = null;
  /** The error of the last attempt to connect; null while connected. */
  problem: ApiError | null = null;

  constructor(private readonly dial: Dial, private readonly transport: Transport, private readonly older: (id: string) => Older, private readonly timeouts: Timeouts = TIMEOUTS) {}

  get state(): State {
    return this.#state;
  }

  /** Subscribe to changes of `state`, `nextTry` and `problem`. */
  onState(changed: () => void): Watch {
    return member(this.#stateWatchers, changed, () => undefined);
  }

  /** Watch all jobs. The watcher is called at once if they are known, and after each change. */
  watchJobs(watcher: (jobs: JobRow[]) => void): Watch {
    if (this.#jobs) later(() => this.#jobWatchers.has(watcher) && this.#jobs && watcher(this.#jobs.value));
    return this.#watch(this.#jobWatchers, watcher);
  }

  /** Watch all clusters. The watcher is called at once if they are known, and after each change. */
  watchClusters(watcher: (clusters: ClusterRow[]) => void): Watch {
    if (this.#clusters) later(() => this.#clusterWatchers.has(watcher) && this.#clusters && watcher(this.#clusters.value));
    return this.#watch(this.#clusterWatchers, watcher);
  }

  /** Watch the requested parts of one job. Cached values are sent at once, but never before this returns. */
  watchJob(id: string, request: JobRequest, handlers: Handlers): Watch {
    const watched = this.#watched.get(id) ?? new JobState();
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

  /** Reconnect now instead of waiting for the retry. */
  tryNow(): void {
    if (this.#state !== 'live') this.#connect();
  }

  /** Remove all watchers and close the connection. */
  dispose(): void {
    this.#watched.clear();
    this.#jobWatchers.clear();
    this.#clusterWatchers.clear();
    this.#stateWatchers.clear();
    this.#disconnect();
  }

  // ---- the connection ----

  #requestsChanged(): void {
    if (this.#state === 'down' && this.#timer !== undefined) return; // the retry sends the current subscription
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      if (!this.#connection) this.#connect();
      else if (this.#subscriptionKey() !== this.#sent) this.#subscribe();
    }, BATCH);
  }

  /** Return a key of the requested data; if it is unchanged, the last subscription still applies. */
  #subscriptionKey(): string {
    const jobs = [...this.#watched].filter(([, watched]) => watched.viewers.size).map(([id, watched]) => [id, watched.wantsLog, [...watched.wanted.keys()].sort()]);
    if (!jobs.length && !this.#jobWatchers.size && !this.#clusterWatchers.size) return '';
    return JSON.stringify([this.#jobWatchers.size > 0, this.#clusterWatchers.size > 0, jobs.sort()]);
  }

  /** Drop cached state without watchers. Only before a new subscription, because the old one would not send it again. */
  #dropUnwatched(): void {
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
    if (!this.#subscriptionKey()) {
      this.#dropUnwatched();
      return;
    }
    if (this.#state === 'down') this.#setState('connecting');
    this.#connection = new Connection(this.dial(ADDRESS), this.timeouts.silence, {
      opened: () => this.#subscribe(),
      received: (message) => this.#receive(message),
      ended: (responded) => this.#scheduleRetry(responded),
    });
  }

  /** Send a new subscription; disconnect if it is empty. */
  #subscribe(): void {
    this.#dropUnwatched();
    this.#sent = this.#subscriptionKey();
    if (!this.#sent) this.#disconnect();
    if (!this.#connection?.open) return;
    const job = Object.fromEntries([...this.#watched].map(([id, watched]) => [id, subscriptionOf(watched)]));
    const keys = { jobs_key: this.#jobs?.key ?? '', clusters_key: this.#clusters?.key ?? '' };
    this.#number += 1;
    this.#welcome = false;
    const body: Subscription = { number: this.#number, jobs: this.#jobWatchers.size > 0, clusters: this.#clusterWatchers.size > 0, ...keys, job };
    this.#connection.say(body);
  }

  #scheduleRetry(responded: boolean): void {
    this.#disconnect();
    const [first, longest] = this.timeouts.retry;
    const pause = Math.min(longest, first * 2 ** this.#failures) * (0.8 + 0.4 * Math.random());
    this.#failures += 1;
    this.nextTry = Date.now() / 1000 + pause;
    this.#timer = setTimeout(() => this.#connect(), pause * 1000);
    this.#setState('down');
    if (!responded) void this.#findReason();
  }

  async #findReason(): Promise<void> {
    const reason = await reached(this.transport(ADDRESS, { cache: 'no-store' })).then(refusal, (error: unknown) => error);
    if (this.#state === 'live' || !(reason instanceof ApiError)) return;
    this.problem = reason;
    notify(this.#stateWatchers, (changed) => changed());
  }

  #setState(state: State): void {
    if (state !== 'down') this.nextTry = null;
    if (state === this.#state && state !== 'down') return;
    this.#state = state;
    notify(this.#stateWatchers, (changed) => changed());
  }

  // ---- messages ----

  #receive(message: Message): void {
    this.lastHeard = Date.now() / 1000;
    if (message.type === 'refused') console.error(message.error.message);
    if (message.type === 'hello') this.#receiveWelcome(message);
    if (!this.#welcome) return;
    if (message.type === 'jobs') this.#receiveJobs(message);
    else if (message.type === 'clusters') this.#receiveClusters(message);
    else if (message.type === 'job' || message.type === 'log' || message.type === 'curve' || message.type === 'resources' || message.type === 'gone') this.#receiveJob(message);
  }

  /** A job that a previous server process did not find may exist now. */
  #receiveWelcome({ number, server_id }: Of<'hello'>): void {
    this.#welcome = number === this.#number;
    if (!this.#welcome) return;
    if (this.#server && server_id !== this.#server) for (const watched of this.#watched.values()) watched.gone = false;
    this.#server = server_id;
    this.#failures = 0;
    this.problem = null;
    this.#setState('live');
  }

  #receiveJobs(message: Of<'jobs'>): void {
    const { rows, removed, whole, key } = message;
    const list = whole || !this.#jobs ? new Map<string, JobRow>() : this.#jobs.list;
    for (const id of removed) list.delete(id);
    for (const row of rows) list.set(row.id, row);
    // Ids sort by creation time.
    const value = [...list.values()].sort((a, b) => (a.id < b.id ? 1 : -1));
    this.#jobs = { list, value, key };
    notify(this.#jobWatchers, (watcher) => watcher(value));
  }

  #receiveClusters({ clusters, key }: Of<'clusters'>): void {
    this.#clusters = { value: clusters, key };
    notify(this.#clusterWatchers, (watcher) => watcher(clusters));
  }

  #receiveJob(message: Of<'job' | 'log' | 'curve' | 'resources' | 'gone'>): void {
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
    } else if (message.type === 'curve') this.#receiveCurve(watched, message);
    else this.#receiveLog(message.id, watched, message);
  }

  #receiveCurve(watched: JobState, message: Of<'curve'>): void {
    const name = curveName({ ...message, metric: message.requested });
    watched.curves.set(name, message);
    const viewers = [...watched.viewers].filter(({ request }) => request.curve && curveName(request.curve) === name);
    notify(viewers, ({ handlers }) => handlers.curve?.(message));
  }

  #receiveLog(id: string, watched: JobState, message: Of<'log'>): void {
    const news = message.whole ? { ...message, older: this.older(id) } : message;
    watched.store.apply(news, message.whole);
    watched.mark = message.mark;
    watched.logged = true;
    notify([...watched.viewers].filter(({ request }) => request.log), ({ handlers }) => handlers.log?.(news));
  }
}

/** Send the cached state of a job to a view. */
function catchUp(watched: JobState, { request, handlers }: Viewer): void {
  if (watched.job) handlers.job?.(watched.job);
  if (request.log && watched.logged) handlers.log?.({ ...watched.store.snapshot(), whole: true });
  const curve = request.curve && watched.curves.get(curveName(request.curve));
  if (curve) handlers.curve?.(curve);
  if (request.log && watched.resources) handlers.resources?.(watched.resources);
  if (watched.gone) handlers.gone?.();
}

function forgetLog(watched: JobState): void {
  watched.store.apply({ rows: [], open: [], first: 0, total: 0, errors: {} }, true);
  watched.mark = 0;
  watched.logged = false;
}

/** Return the subscription of a job, with the keys of its cached state. */
function subscriptionOf(watched: JobState): JobSubscription {
  const curveRequests = watched.wanted;
  for (const name of watched.curves.keys()) if (!curveRequests.has(name)) watched.curves.delete(name);
  const curves = [...curveRequests].map(([name, { metric, mode }]) => ({ metric, mode, key: watched.curves.get(name)?.key ?? '' }));
  return { log: watched.wantsLog ? { mark: watched.mark } : null, curves, key: watched.gone ? 'gone' : (watched.job?.key ?? ''), resources: watched.wantsLog };
}

const curveName = ({ metric, mode }: { metric: string; mode: string }): string => JSON.stringify([metric, mode]);

interface ConnectionListener {
  opened: () => void;
  received: (message: Message) => void;
  /** `responded` is true if a message was received. Not called after `close`. */
  ended: (responded: boolean) => void;
}

/** One WebSocket, until it closes or times out. */
class Connection {
  #responded = false;
  #lastMessage = Date.now();
  readonly #timer: ReturnType<typeof setInterval>;

  constructor(private readonly socket: Socket, silence: number, listener: ConnectionListener) {
    this.#timer = setInterval(() => {
      if (Date.now() - this.#lastMessage > silence * 1000) this.#end(listener);
    }, CHECK);
    socket.onopen = listener.opened;
    // An error does not close the socket in every browser.
    socket.onclose = socket.onerror = () => this.#end(listener);
    socket.onmessage = ({ data }: MessageEvent<string>) => {
      this.#responded = true;
      this.#lastMessage = Date.now();
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
    listener.ended(this.#responded);
  }
}

/** Call every watcher; an error in one does not affect the others. */
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

function member<T>(set: Set<T>, item: T, removed: () => void): Watch {
  set.add(item);
  return once(() => {
    set.delete(item);
    removed();
  });
}
