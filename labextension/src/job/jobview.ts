/**
 * One job, live: head, set-up, failure, curve, log and foot, kept up to date from messages of the server.
 *
 * It does not know JupyterLab: a `JobHost` brings the messages and carries out what is pressed, and `layout` arranges the
 * parts.
 */
import { Clock, type Card, type Stacks } from './card';
import { CurveView } from './curveview';
import { adopt, h } from '../ui/dom';
import { FailureView, inNotebook, type Reach } from './failure';
import { curveDefaults } from './curvedefaults';
import { Header, button, type Extras } from './header';
import { __ } from '../ui/trans';
import { LogStore, type Changes } from './logstore';
import { LogView, newLogViewState, type LogViewState } from './logview';
import { Finding, Notice } from './notice';
import type { Choice, Metric } from './picker';
import { PicturesView } from './pictures';
import type { components, CurveMessage } from '../api/schema';
import { Phases } from './phases';
import type { Offer } from './queue';
import { ResourcesView, type Resources } from './resources';
import { StepTimeView, type JobTime } from './steptime';
import { ProfileView, type JobProfile } from './profile';
import { StacksView } from './stacks';
import { ENDED } from '../ui/format';

/** One rank in the table of ranks. */
export type RankRow = components['schemas']['RankRow'];

export interface JobMessage {
  card: Card;
  metrics: Metric[];
  ranks: RankRow[];
}

export interface LogMessage extends Changes {
  /** Set on a message that replaces everything. */
  whole: boolean;
}

/** Parts of a job to subscribe to besides its card; viewers of the log also receive the resources of its ranks. */
export interface JobRequest {
  log: boolean;
  curve: Choice | null;
}

export interface Handlers {
  job?(message: JobMessage): void;
  log?(message: LogMessage): void;
  curve?(message: CurveMessage): void;
  resources?(message: Used): void;
  gone?(): void;
}

export interface Watch {
  dispose(): void;
}

/** Resources of ranks and machines, and the step time. */
export type Used = Resources & { time: JobTime | null };

/** Delivers messages to a view and executes its actions. */
export interface JobHost {
  watch(request: JobRequest, handlers: Handlers): Watch;
  /** Whether the server responds at the moment. */
  connected(): boolean;
  cancel(now: boolean): Promise<unknown>;
  rerun(): Promise<unknown>;
  resume(): Promise<unknown>;
  /** Move a queued job to the front of the queue. */
  raise(): Promise<unknown>;
  /** Watch clusters on which a queued job could start now, and start it there instead. */
  elsewhere(changed: (offers: Offer[]) => void): Watch;
  move(target: string): Promise<unknown>;
  /** Request stack traces of all ranks; the card lists them by number once they are available. */
  askStacks(): Promise<unknown>;
  stacks(number: number): Promise<Stacks>;
  /** Request a profile of the next steps of some ranks, or of all ranks with null; the card reports the progress. */
  askProfile(steps: number, ranks: number[] | null): Promise<unknown>;
  profile(number: number): Promise<JobProfile>;
  /** The address of a rank's trace in a profile. */
  traceUrl(number: number, rank: number): string;
  /** The address of a picture that ranks have shown. */
  picture(number: number): string;
  /** Show another job. */
  openJob(id: string): void;
}

/** The elements of a view; each is filled by the view alone. */
export interface Parts {
  head: HTMLElement;
  failure: HTMLElement;
  setup: HTMLElement;
  stacks: HTMLElement;
  profile: HTMLElement;
  pictures: HTMLElement;
  finding: HTMLElement;
  curve: HTMLElement;
  log: HTMLElement;
  time: HTMLElement;
  resources: HTMLElement;
  foot: HTMLElement;
}

export interface Options {
  layout?: (parts: Parts, root: HTMLElement) => void;
  extras?: Extras;
  /** Whether the view can be closed to one line. */
  detachable?: boolean;
  place?: LogViewState;
  choice?: Choice;
  reach?: Reach;
  /** Called with every newer state, and when the job does not exist or was deleted. */
  changed?: (message: JobMessage) => void;
  /** Called with the resources of ranks and machines, and the step time. */
  used?: (message: Used) => void;
  gone?: () => void;
  /** Called when the stacks or a profile are to be seen. */
  stacksOpened?: () => void;
  /** Called when a user chose another curve. */
  chose?: (choice: Choice) => void;
}

const SETUP: ReadonlySet<string> = new Set(['queued', 'preparing', 'starting']);
/** Seconds without a connection after which the view counts as paused. */
const TIMEOUT = 2;

export class JobView {
  readonly #parts: Parts;
  readonly #header: Header;
  readonly #failure: FailureView;
  readonly #setup: Phases;
  readonly #stacks: StacksView;
  readonly #profile: ProfileView;
  readonly #pictures: PicturesView;
  readonly #curve: CurveView;
  readonly #time: StepTimeView;
  readonly #resources: ResourcesView;
  readonly #store = new LogStore();
  readonly #place: LogViewState;
  readonly #log: LogView;
  readonly #finding: Finding;
  readonly #notice: Notice;
  readonly #timer: ReturnType<typeof setInterval>;
  readonly #observer: ResizeObserver;
  #message: JobMessage | null = null;
  #detached = false;
  #stacksOpen = false;
  #gone = false;
  #problem: unknown = '';
  #steady: Watch | null = null;
  #drawing: Watch | null = null;

  constructor(private readonly root: HTMLElement, private readonly host: JobHost, private readonly options: Options = {}) {
    const clock = new Clock(TIMEOUT);
    this.#place = options.place ?? newLogViewState();
    this.#curve = new CurveView(options.choice ?? curveDefaults(), (request) => this.#draw(request), (on) => this.#zoom(on));
    this.#parts = { head: h('div'), failure: h('div'), setup: h('div'), stacks: h('div'), profile: h('div'), pictures: h('div'), finding: h('div'), curve: this.#curve.root, log: h('div'), time: h('div'), resources: h('div'), foot: h('div') };
    const { head, failure, setup, stacks, profile, pictures, finding, log, time, resources, foot } = this.#parts;
    this.#header = new Header(head, this.#actions(), clock, options.extras);
    this.#failure = new FailureView(failure, { rerun: () => this.#follow(host.rerun()), resume: () => this.#follow(host.resume()) }, options.reach);
    this.#setup = new Phases(setup, clock, {
      raise: () => this.#carryOut(host.raise()),
      elsewhere: host.elsewhere,
      move: (target) => this.#carryOut(host.move(target)),
    });
    const source = { ask: () => host.askStacks(), read: (number: number) => host.stacks(number) };
    this.#stacks = new StacksView(stacks, source, options.reach ?? inNotebook, (open) => this.#stacksShown(open));
    this.#profile = new ProfileView(profile, { ask: host.askProfile, read: host.profile, trace: host.traceUrl }, (open) => this.#profileShown(open));
    this.#pictures = new PicturesView(pictures, host.picture);
    this.#log = new LogView(log, this.#store, this.#place, () => root.classList.add('dd-unfolded'), host.picture);
    this.#time = new StepTimeView(time);
    this.#resources = new ResourcesView(resources);
    this.#finding = new Finding(finding, button('stacks', __('Show stacks'), 'dd-small dd-shrink'), () => this.#stacks.show());
    this.#notice = new Notice(foot);
    (options.layout ?? compact)(this.#parts, root);
    root.classList.add('dd-loading');
    this.#observer = new ResizeObserver(() => this.#log.refresh());
    this.#observer.observe(log);
    this.#timer = setInterval(() => this.#tick(), 500);
    this.#watch();
  }

  /** The newest state, null before the first. */
  get message(): JobMessage | null {
    return this.#message;
  }

  /** Draw what depends on the view's position: it was put into the page, or has come into sight. */
  refresh(): void {
    if (this.#message) this.#failure.update(this.#message.card);
    this.#log.restore();
  }

  /** Show the stacks as soon as the job is known. */
  showStacks(): void {
    this.#stacks.show();
  }

  /** Show resources and step time as figures, not only as text. */
  openFigures(): void {
    this.#time.open(true);
    this.#resources.open(true);
  }

  /** Show an error in the view's foot. */
  say(problem: unknown): void {
    this.#problem = problem;
    this.#drawNotices();
  }

  dispose(): void {
    clearInterval(this.#timer);
    this.#observer.disconnect();
    this.#steady?.dispose();
    this.#drawing?.dispose();
    this.#setup.dispose();
    this.#curve.dispose();
    this.#stacks.dispose();
    this.#pictures.dispose();
  }

  // ---- messages ----

  #watch(): void {
    const before = this.#steady;
    const gone = (): void => this.#isGone();
    const job = (message: JobMessage): void => this.#take(message);
    const log = (message: LogMessage): void => this.#takeLog(message);
    const resources = (message: Used): void => this.#takeResources(message);
    const attached = !this.#detached;
    this.#steady = this.host.watch({ log: attached, curve: null }, attached ? { job, log, resources, gone } : { job, gone });
    before?.dispose();
    this.#draw(attached ? this.#curve.request : null);
  }

  /** Request the curve with the last selected options. */
  #draw(choice: Choice | null): void {
    const before = this.#drawing;
    this.#drawing = choice && this.host.watch({ log: false, curve: choice }, { curve: (message) => this.#curve.take(message) });
    before?.dispose();
    if (choice) this.options.chose?.(choice);
  }

  #take(message: JobMessage): void {
    const { card, metrics, ranks } = message;
    this.#message = message;
    this.root.classList.remove('dd-loading');
    this.#header.clock.sync(card.now);
    this.#header.update(card, ranks, this.#detached);
    this.#setup.update(card);
    this.#parts.setup.classList.toggle('dd-gone', !SETUP.has(card.state) || this.#detached);
    this.#failure.update(card);
    this.#stacks.update(card);
    this.#profile.update(card);
    this.#pictures.update(card);
    this.#setParts(card);
    const world = card.node_count * card.process_count_per_node;
    this.#curve.update(metrics, world > 1);
    this.#log.set({ world, failed: card.failure && { rank: card.failure.rank, text: card.failure.error_type } });
    this.#drawNotices();
    this.options.changed?.(message);
  }

  /** Set the classes of visible parts; the style sheet hides the others. */
  #setParts(card: Card): void {
    const { classList } = this.root;
    classList.toggle('dd-detached', this.#detached);
    classList.toggle('dd-failed', card.failure !== null);
    classList.toggle('dd-unfolded', !this.#place.folded);
    classList.toggle('dd-with-curve', card.has_metrics);
    classList.toggle('dd-with-log', card.lines > 0 || !SETUP.has(card.state));
  }

  #takeLog(message: LogMessage): void {
    this.#store.apply(message, message.whole);
    this.#log.refresh();
  }

  #takeResources(message: Used): void {
    this.#time.take(message.time);
    this.#resources.take(message);
    this.#finding.take(message);
    this.#header.takeTime(message.time);
    this.#drawNotices();
    this.options.used?.(message);
  }

  #drawNotices(): void {
    if (!this.#message) return;
    const { card } = this.#message;
    this.#notice.update(card, this.#words(), this.#finding.update(card, this.#stacksOpen) && !this.#detached);
  }

  #isGone(): void {
    if (this.#gone) return;
    this.#gone = true;
    if (this.#message) this.#take({ ...this.#message, card: { ...this.#message.card, can_rerun: false, can_resume: false } });
    this.options.gone?.();
  }

  #tick(): void {
    const card = this.#message?.card;
    if (!card) return;
    if (!ENDED.has(card.state) && !this.#gone && this.host.connected()) this.#header.clock.keep();
    this.#header.tick();
    this.#setup.tick();
  }

  #words(): unknown {
    return this.#gone ? __('This job was deleted. Its last state is shown.') : this.#problem;
  }

  // ---- actions ----

  #actions(): ConstructorParameters<typeof Header>[1] {
    const { host } = this;
    return {
      cancel: () => this.#carryOut(host.cancel(false)),
      kill: () => this.#carryOut(host.cancel(true)),
      rerun: () => this.#follow(host.rerun()),
      resume: () => this.#follow(host.resume()),
      stacks: () => this.#stacks.toggle(),
      profile: () => this.#profile.toggle(),
      openJob: host.openJob,
      ...(this.options.detachable ? { detach: () => this.#detach(true), attach: () => this.#detach(false) } : {}),
    };
  }

  /** The button stays pressed until the state changes; it is free again at once when that will not come. */
  #carryOut(work: Promise<unknown>): void {
    work.then(
      () => this.say(''),
      (error: unknown) => {
        this.say(error);
        this.#header.release();
      },
    );
  }

  /** Another job begins; this one stays as it is. */
  #follow(begun: Promise<unknown>): void {
    this.#carryOut(begun.then(() => this.#header.release()));
  }

  #stacksShown(open: boolean): void {
    this.#stacksOpen = open;
    this.#header.stacksShown(open);
    this.#drawNotices();
    if (open) this.options.stacksOpened?.();
  }

  #profileShown(open: boolean): void {
    this.#header.profileShown(open);
    if (open) this.options.stacksOpened?.();
  }

  #detach(on: boolean): void {
    this.#detached = on;
    this.#watch();
    if (this.#message) this.#take(this.#message);
  }

  #zoom(on: boolean): void {
    this.root.classList.toggle('dd-zoomed', on);
    this.root.querySelector('.dd-body')?.classList.toggle('dd-zoomed', on);
  }
}

/** The parts as one card below a cell. */
function compact({ head, failure, setup, stacks, profile, pictures, finding, curve, log, time, resources, foot }: Parts, root: HTMLElement): void {
  adopt(root, 'dd-card');
  root.append(h('div', {}, head, failure, setup, finding, stacks, profile, pictures), h('div', { class: 'dd-body' }, curve, log), time, resources, foot);
}
