/**
 * What the page is told of jobs and clusters while they change: one stream for everything that any view watches.
 *
 * * All wishes together are one request. When they change, a new request goes on where the last message ended: each
 *   message has a key, each log a mark, so nothing is told twice and no row is lost, also when the server was started
 *   again in between.
 * * A view that begins to watch what others watch already is told at once what these know.
 * * A connection that breaks, or is silent too long, is made anew, later and later. Where the stream's first line does not
 *   come through, a proxy holds it back: then answers in batches are asked for instead, each as soon as there is news.
 *
 * How requests travel is handed in, so nothing of `@jupyterlab` is imported here.
 */
import type { CurveWish } from '../curveview';
import type { Handlers, Watch, Wish } from '../jobview';
import { LogStore, type Older } from '../logstore';
import type { Batch, Cluster, CurveMessage, JobMessage, JobRow, JobSubscription, Subscription } from '../schema';
import { ApiError, reached, refusal, type Transport } from './api';

/** All jobs, newest first; the counts are of all. */
export interface Jobs {
  rows: JobRow[];
  total: number;
  active: number;
  failed: number;
}

export type State = 'live' | 'connecting' | 'down';

/** Seconds of silence after which a connection counts as broken, and of waiting for a stream's first line. */
export interface Patience {
  silence: number;
  first: number;
  /** The first and the longest pause before the next try. */
  retry: readonly [number, number];
  /** How long an answer in batches may wait for news. */
  wait: number;
}

const PATIENCE: Patience = { silence: 20, first: 8, retry: [0.5, 8], wait: 10 };
const STREAM = 'application/x-ndjson';
/** Milliseconds in which wishes gather, and between two looks for silence. */
const [GATHER, LOOK] = [50, 500];

type Message = Batch['messages'][number];
type Of<T extends Message['type']> = Extract<Message, { type: T }>;

/** One view that watches a job. */
interface Viewer {
  wish: Wish;
  handlers: Handlers;
}

/** What is known of a job that somebody watches. */
class Watched {
  readonly viewers = new Set<Viewer>();
  readonly store = new LogStore();
  readonly curves = new Map<string, CurveMessage>();
  job: JobMessage | null = null;
  mark = 0;
  /** Whether the log has come since it was asked for. */
  logged = false;
  gone = false;

  get wantsLog(): boolean {
    return [...this.viewers].some(({ wish }) => wish.log);
  }

  /** The curves that are wanted, each once. */
  get wanted(): Map<string, CurveWish> {
    const wishes = [...this.viewers].flatMap(({ wish }) => (wish.curve ? [wish.curve] : []));
    return new Map(wishes.map((wish) => [curveName(wish), wish]));
  }
}

export class Live {
  readonly #jobWatchers = new Set<(jobs: Jobs) => void>();
  readonly #clusterWatchers = new Set<(clusters: Cluster[]) => void>();
  readonly #watched = new Map<string, Watched>();
  readonly #stateWatchers = new Set<() => void>();
  #jobs: { list: Map<string, JobRow>; told: Jobs; key: string } | null = null;
  #clusters: { told: Cluster[]; key: string } | null = null;
  #state: State = 'connecting';
  #connection: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #asked = '';
  #failures = 0;
  /** Whether answers in batches are asked for, and whether they come. */
  #batches = false;
  #batchesCome = false;
  #boot = '';

  /** When the server was last heard, and when it is tried again while it is down: epoch seconds of the page's clock. */
  lastHeard: number | null = null;
  nextTry: number | null = null;
  /** Why the server does not answer as it should, null while it does. */
  problem: ApiError | null = null;

  constructor(private readonly transport: Transport, private readonly older: (id: string) => Older, private readonly patience: Patience = PATIENCE) {}

  get state(): State {
    return this.#state;
  }

  /** Be told of every change of `state`, `nextTry`, `problem`. */
  onState(changed: () => void): Watch {
    return member(this.#stateWatchers, changed, () => undefined);
  }

  /** Be told of all jobs, now when they are known, and whenever they change. */
  watchJobs(told: (jobs: Jobs) => void): Watch {
    if (this.#jobs) later(() => this.#jobWatchers.has(told) && this.#jobs && told(this.#jobs.told));
    return this.#watch(this.#jobWatchers, told);
  }

  /** Be told of all clusters, now when they are known, and whenever they change. */
  watchClusters(told: (clusters: Cluster[]) => void): Watch {
    if (this.#clusters) later(() => this.#clusterWatchers.has(told) && this.#clusters && told(this.#clusters.told));
    return this.#watch(this.#clusterWatchers, told);
  }

  /** Be told of one job what is wished; at once what is known already, but never before this returned. */
  watchJob(id: string, wish: Wish, handlers: Handlers): Watch {
    const watched = this.#watched.get(id) ?? new Watched();
    this.#watched.set(id, watched);
    const viewer = { wish, handlers };
    watched.viewers.add(viewer);
    later(() => watched.viewers.has(viewer) && catchUp(watched, viewer));
    this.#wishesChanged();
    return once(() => {
      watched.viewers.delete(viewer);
      this.#wishesChanged();
    });
  }

  #watch<T>(watchers: Set<T>, watcher: T): Watch {
    const watch = member(watchers, watcher, () => this.#wishesChanged());
    this.#wishesChanged();
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

  // ---- the request ----

  #wishesChanged(): void {
    if (this.#state === 'down' && this.#timer !== undefined) return; // the next try asks for what is wanted then
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      if (this.#wanted() !== this.#asked || !this.#connection) this.#connect();
    }, GATHER);
  }

  /** What is wanted, without what is known of it: the same text means that the open stream will do. */
  #wanted(): string {
    const jobs = [...this.#watched].filter(([, watched]) => watched.viewers.size).map(([id, watched]) => [id, watched.wantsLog, [...watched.wanted.keys()].sort()]);
    if (!jobs.length && !this.#jobWatchers.size && !this.#clusterWatchers.size) return '';
    return JSON.stringify([this.#jobWatchers.size > 0, this.#clusterWatchers.size > 0, jobs.sort()]);
  }

  /** Let go of what nobody watches. Not before a new request: the open one would not tell it again. */
  #forget(): void {
    if (!this.#jobWatchers.size) this.#jobs = null;
    if (!this.#clusterWatchers.size) this.#clusters = null;
    for (const [id, watched] of this.#watched) {
      if (!watched.viewers.size) this.#watched.delete(id);
      else if (!watched.wantsLog) forgetLog(watched);
    }
  }

  #body(): string {
    const job = Object.fromEntries([...this.#watched].map(([id, watched]) => [id, wishOf(watched)]));
    const keys = { jobs_key: this.#jobs?.key ?? '', clusters_key: this.#clusters?.key ?? '' };
    const wait = this.#batches ? this.patience.wait : 0;
    const body: Subscription = { jobs: this.#jobWatchers.size > 0, clusters: this.#clusterWatchers.size > 0, ...keys, job, wait };
    return JSON.stringify(body);
  }

  #disconnect(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#connection?.abort();
    this.#connection = null;
  }

  #connect(): void {
    this.#disconnect();
    this.#forget();
    this.#asked = this.#wanted();
    if (!this.#asked) return;
    const connection = new AbortController();
    this.#connection = connection;
    if (this.#state === 'down') this.#setState('connecting');
    void this.#converse(connection).catch((error: unknown) => this.#broke(connection, error));
  }

  async #converse(connection: AbortController): Promise<void> {
    do {
      const batches = this.#batches;
      const heard = new Silence(this.patience, batches, () => this.#heldBack(), () => connection.abort(new ApiError('', 'Silence', '', 0)));
      try {
        const headers = { Accept: batches ? 'application/json' : STREAM, 'Content-Type': 'application/json' };
        const init = { method: 'POST', headers, body: this.#body(), signal: connection.signal, cache: 'no-store' } as const;
        const response = await reached(this.transport('events', init));
        if (!response.ok) throw await refusal(response);
        const take = (message: Message): void => this.#take(connection, message);
        if (batches) ((await response.json()) as Batch).messages.forEach(take);
        else await lines(response, heard, take);
      } finally {
        heard.stop();
      }
    } while (this.#batches && this.#connection === connection);
    throw new ApiError('', 'StreamEnded', '', 0);
  }

  /** The stream's first line did not come: a proxy keeps it until the answer ends, which it never does. */
  #heldBack(): void {
    this.#batches = true;
    this.#connect();
  }

  #broke(connection: AbortController, error: unknown): void {
    if (this.#connection !== connection) return;
    this.#disconnect();
    if (!this.#batchesCome) this.#batches = false;
    const [first, longest] = this.patience.retry;
    const pause = Math.min(longest, first * 2 ** this.#failures) * (0.8 + 0.4 * Math.random());
    this.#failures += 1;
    this.problem = error instanceof ApiError && error.type !== 'StreamEnded' ? error : null;
    this.nextTry = Date.now() / 1000 + pause;
    this.#timer = setTimeout(() => this.#connect(), pause * 1000);
    this.#setState('down');
  }

  #setState(state: State): void {
    if (state !== 'down') this.nextTry = null;
    if (state === this.#state && state !== 'down') return;
    this.#state = state;
    tell(this.#stateWatchers, (changed) => changed());
  }

  // ---- messages ----

  #take(connection: AbortController, message: Message): void {
    if (this.#connection !== connection) return;
    this.lastHeard = Date.now() / 1000;
    this.#failures = 0;
    this.#batchesCome = this.#batches;
    this.problem = null;
    this.#setState('live');
    if (message.type === 'hello') this.#hello(message.boot);
    else if (message.type === 'jobs') this.#takeJobs(message);
    else if (message.type === 'clusters') this.#takeClusters(message);
    else if (message.type !== 'alive') this.#takeJob(message);
  }

  /** A job that another server process did not find may be there now. */
  #hello(boot: string): void {
    if (this.#boot && boot !== this.#boot) for (const watched of this.#watched.values()) watched.gone = false;
    this.#boot = boot;
  }

  #takeJobs(message: Of<'jobs'>): void {
    const { rows, removed, whole, key, total, active, failed } = message;
    const list = whole || !this.#jobs ? new Map<string, JobRow>() : this.#jobs.list;
    for (const id of removed) list.delete(id);
    for (const row of rows) list.set(row.id, row);
    // Ids sort by the time of their making.
    const newest = [...list.values()].sort((a, b) => (a.id < b.id ? 1 : -1));
    const told = { rows: newest, total, active, failed };
    this.#jobs = { list, told, key };
    tell(this.#jobWatchers, (watcher) => watcher(told));
  }

  #takeClusters({ clusters, key }: Of<'clusters'>): void {
    this.#clusters = { told: clusters, key };
    tell(this.#clusterWatchers, (watcher) => watcher(clusters));
  }

  #takeJob(message: Of<'job' | 'log' | 'curve' | 'gone'>): void {
    const watched = this.#watched.get(message.id);
    if (!watched) return;
    const viewers = [...watched.viewers];
    if (message.type === 'job') {
      watched.job = message;
      watched.gone = false;
      tell(viewers, ({ handlers }) => handlers.job?.(message));
    } else if (message.type === 'gone') {
      watched.gone = true;
      tell(viewers, ({ handlers }) => handlers.gone?.());
    } else if (message.type === 'curve') this.#takeCurve(watched, message);
    else this.#takeLog(message.id, watched, message);
  }

  #takeCurve(watched: Watched, message: Of<'curve'>): void {
    const name = curveName({ ...message, metric: message.asked });
    watched.curves.set(name, message);
    const viewers = [...watched.viewers].filter(({ wish }) => wish.curve && curveName(wish.curve) === name);
    tell(viewers, ({ handlers }) => handlers.curve?.(message));
  }

  #takeLog(id: string, watched: Watched, message: Of<'log'>): void {
    const news = message.whole ? { ...message, older: this.older(id) } : message;
    watched.store.apply(news, message.whole);
    watched.mark = message.mark;
    watched.logged = true;
    tell([...watched.viewers].filter(({ wish }) => wish.log), ({ handlers }) => handlers.log?.(news));
  }
}

/** Tell a view what is known already of its job. */
function catchUp(watched: Watched, { wish, handlers }: Viewer): void {
  if (watched.job) handlers.job?.(watched.job);
  if (wish.log && watched.logged) handlers.log?.({ ...watched.store.snapshot(), whole: true });
  const curve = wish.curve && watched.curves.get(curveName(wish.curve));
  if (curve) handlers.curve?.(curve);
  if (watched.gone) handlers.gone?.();
}

function forgetLog(watched: Watched): void {
  watched.store.apply({ rows: [], open: [], first: 0, total: 0, errors: {} }, true);
  watched.mark = 0;
  watched.logged = false;
}

/** What to ask for of a job, with what is known of it. */
function wishOf(watched: Watched): JobSubscription {
  const wanted = watched.wanted;
  for (const name of watched.curves.keys()) if (!wanted.has(name)) watched.curves.delete(name);
  const curves = [...wanted].map(([name, { metric, mode, log, dark }]) => ({ metric, mode, log, dark, key: watched.curves.get(name)?.key ?? '' }));
  return { log: watched.wantsLog ? { mark: watched.mark } : null, curves, key: watched.gone ? 'gone' : (watched.job?.key ?? '') };
}

const curveName = ({ metric, mode, log, dark }: Omit<CurveWish, 'mode'> & { mode: string }): string => JSON.stringify([metric, mode, log, dark]);

/** Says that a stream is held back when its first line does not come, and that a connection is dead when nothing comes. */
class Silence {
  #since = Date.now();
  #answered = false;
  #begun = false;
  readonly #timer: ReturnType<typeof setInterval>;

  constructor(patience: Patience, batches: boolean, heldBack: () => void, dead: () => void) {
    this.#begun = batches;
    this.#timer = setInterval(() => {
      const seconds = (Date.now() - this.#since) / 1000;
      if (this.#begun ? seconds <= patience.silence : seconds <= (this.#answered ? patience.first : patience.silence)) return;
      this.stop();
      if (this.#begun) dead();
      else heldBack();
    }, LOOK);
  }

  /** The server has answered, but nothing has come of its stream yet. */
  answered(): void {
    this.#answered = true;
    this.#since = Date.now();
  }

  heard(): void {
    this.#since = Date.now();
    this.#begun = true;
  }

  stop(): void {
    clearInterval(this.#timer);
  }
}

/** Hand on each line of a stream as a message, until it ends. */
async function lines(response: Response, silence: Silence, take: (message: Message) => void): Promise<void> {
  if (!response.body) return;
  silence.answered();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    silence.heard();
    const found = (rest + value).split('\n');
    rest = found.pop() ?? '';
    for (const line of found) if (line) take(JSON.parse(line) as Message);
  }
}

/** Tell everybody, whatever one of them does with it. */
function tell<T>(watchers: Iterable<T>, told: (watcher: T) => void): void {
  for (const watcher of [...watchers]) {
    try {
      told(watcher);
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
