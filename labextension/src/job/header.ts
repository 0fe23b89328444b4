/**
 * The head of a job's panel: state, name, id; where and how many; percent, step, time left; the buttons.
 *
 * It answers in that order, in every state. It knows nothing of widgets: it is given a `Card` and calls `Actions`.
 */
import { Clock, type Card, type RankRow, type Stop } from './card';
import { copy } from '../ui/clipboard';
import { HERE, around, assign, fill, h, onClick, setText, show, type Child } from '../ui/dom';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import { Restarts } from './restarts';
import { StallLine } from './stall';
import type { JobTime } from './steptime';
import { ENDED, ago, clock, count, duration, money, pastDay, percent, processes, ranAndWaited, rankCount, rankWord, shortId, shownState, spans, stateWord, unitWord, type ShownState } from '../ui/format';

export interface Actions {
  cancel(): void;
  kill(): void;
  rerun(): void;
  resume(): void;
  /** Show or hide the stacks. */
  stacks(): void;
  /** Show or hide the profile. */
  profile(): void;
  /** Show another job. */
  openJob(id: string): void;
  /** Close the view to one line, and open it again; left out where a view has one size only. */
  detach?(): void;
  attach?(): void;
}

/** What a place adds to the head that it shows. */
export interface Extras {
  /** Before the head's own buttons, and between `Rerun` and `Cancel`. */
  first?: HTMLElement[];
  more?: HTMLElement[];
  /** Elements at the end of the line with cluster and size. */
  origin?: HTMLElement[];
}

/** A job younger than this is canceled without a question, in seconds. */
const YOUNG = 60;
/** Hosts that are each shown by name at most. */
const HOSTS = 16;
/** Jobs with more ranks have counts in place of dots. */
const DOTS = 64;
/** Ranks that still run are named if they are so few. */
const NAMED = 3;
const SETUP = new Set(['queued', 'preparing', 'starting']);

export class Header {
  #card: Card | null = null;
  #ranks: RankRow[] = [];
  #detached = false;
  #asking = false;
  #returning = false;
  #pressed: string | null = null;
  #stacksOpen = false;
  #profileOpen = false;
  #time: JobTime | null = null;

  readonly #pill = h('span', { class: 'dd-pill' });
  readonly #name = h('span', { class: 'dd-title dd-ell' });
  readonly #id = h('span', { class: 'dd-mono dd-sub dd-id-long dd-nw' });
  readonly #shortId = h('span', { class: 'dd-mono dd-sub dd-id-short dd-nw' });
  readonly #copy = button('copy', __('Copy id'), 'dd-quiet dd-icon');
  readonly #inline = h('span', { class: 'dd-sub dd-s12 dd-num dd-ell' });
  readonly #paused = h('div', { class: 'dd-paused dd-row dd-s12 dd-ink-warn', hidden: true });
  readonly #question = h('span', { class: 'dd-row dd-ask', role: 'group', hidden: true });
  readonly #attach = button('attach', __('Attach'), 'dd-keep');
  readonly #detach = button('detach', __('Detach'), 'dd-shrink');
  readonly #rerun = button('rerun', __('Rerun'), '');
  readonly #resume = resumeButton();
  readonly #stacks = button('stacks', __('Show stacks'), 'dd-shrink');
  readonly #stallStacks = button('stacks', __('Show stacks'), 'dd-small dd-primary');
  readonly #profile = button('profile', __('Profile'), 'dd-shrink');
  readonly #cancel = button('close', __('Cancel'), 'dd-shrink dd-danger');
  readonly #kill = button('stop', __('Kill now'), 'dd-shrink dd-danger');
  readonly #meta = h('div', { class: 'dd-dots dd-sub dd-s12 dd-num dd-grow' });
  readonly #hosts = h('div', { class: 'dd-hosts dd-s12', role: 'img' });
  readonly #metaRow = h('div', { class: 'dd-row dd-meta' }, this.#meta, this.#hosts);
  readonly #percent = h('span', { class: 'dd-b dd-nw' });
  readonly #steps = h('span', { class: 'dd-dots dd-sub dd-grow' });
  readonly #rate = h('span', { class: 'dd-nw dd-rate' });
  readonly #elapsed = h('span', { class: 'dd-sub dd-nw' });
  readonly #left = h('span', { class: 'dd-b dd-nw' });
  readonly #workRow = h('div', { class: 'dd-row dd-num dd-work' }, this.#percent, this.#steps, this.#rate, this.#elapsed, this.#left);
  readonly #stopNext = h('span', { class: 'dd-grow dd-ell' });
  readonly #stopPlaces = h('span', { class: 'dd-sub dd-ell' });
  readonly #stopRow = h('div', { class: 'dd-row dd-num dd-s12 dd-stop' }, this.#stopNext, this.#stopPlaces);
  readonly #fill = h('i');
  readonly #bar = h('div', { class: 'dd-bar', role: 'progressbar', 'aria-valuemin': 0, 'aria-valuemax': 100 }, this.#fill);
  readonly #stall: StallLine;
  readonly #restarts = new Restarts();
  readonly #live = h('div', { class: 'dd-sr', role: 'status', 'aria-live': 'polite' });

  constructor(
    readonly root: HTMLElement,
    private readonly actions: Actions,
    readonly clock = new Clock(),
    private readonly extras: Extras = {},
  ) {
    root.classList.add('dd-head');
    root.setAttribute('role', 'group');
    const { first = [], more = [] } = extras;
    const buttons = [...first, this.#attach, this.#detach, this.#stacks, this.#profile, this.#rerun, this.#resume, ...more, this.#cancel, this.#kill];
    this.#stall = new StallLine(clock, this.#stallStacks);
    const identity = [this.#pill, this.#name, this.#id, this.#shortId, this.#copy, this.#inline];
    const top = h('div', { class: 'dd-row dd-top' }, ...identity, h('span', { class: 'dd-grow' }), this.#question, ...buttons);
    root.append(top, this.#paused, this.#metaRow, this.#restarts.root, this.#workRow, this.#stopRow, this.#bar, this.#stall.root, this.#live);
    this.#connect();
  }

  #connect(): void {
    onClick(this.#copy, () => void copy(this.#card?.id ?? '', this.#copy));
    onClick(this.#cancel, () => this.#askOrCancel());
    onClick(this.#kill, () => this.#press('kill'));
    onClick(this.#detach, () => this.actions.detach?.());
    onClick(this.#attach, () => this.actions.attach?.());
    onClick(this.#rerun, () => this.#press('rerun'));
    onClick(this.#resume, () => this.#press('resume'));
    for (const each of [this.#stacks, this.#stallStacks]) onClick(each, () => this.actions.stacks());
    onClick(this.#profile, () => this.actions.profile());
    this.#question.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') this.#answer(false);
    });
  }

  /** Show a newer card with the job's ranks. */
  update(card: Card, ranks: RankRow[], detached = false): void {
    const changed = this.#card?.state !== card.state;
    const state = shown(card);
    if (this.#card && shown(this.#card) !== state) setText(this.#live, `${card.name}: ${stateWord(state)}`);
    if (changed) this.#asking = false;
    if (changed) this.#pressed = null;
    this.#card = card;
    this.#ranks = ranks;
    this.#detached = detached;
    this.tick();
  }

  /** The kernel has answered a press that could not be carried out, so the button is free again. */
  release(): void {
    this.#pressed = null;
    this.tick();
  }

  /** Take where the time of steps goes, null where nothing was measured. */
  takeTime(time: JobTime | null): void {
    this.#time = time;
    this.tick();
  }

  /** Whether the stacks are shown. */
  stacksShown(open: boolean): void {
    this.#stacksOpen = open;
    this.tick();
  }

  /** Whether the profile is shown. */
  profileShown(open: boolean): void {
    this.#profileOpen = open;
    this.tick();
  }

  /** Redraw what depends on the time; to be called a few times a second. */
  tick(): void {
    const card = this.#card;
    if (!card) return;
    const paused = this.#isPaused(card);
    assign(this.root, { 'data-mode': this.#mode(card), 'aria-label': `Job ${card.name}` });
    this.#drawIdentity(card);
    this.#drawMeta(card);
    this.#drawWork(card);
    this.#drawStop(card);
    const small = this.#mode(card) === 'detached';
    this.#restarts.update(card, small);
    this.#stall.update(card, small);
    this.#drawPaused(card, paused);
    this.#drawButtons(card, paused);
  }

  #mode(card: Card): string {
    if (this.#detached) return 'detached';
    if (ENDED.has(card.state)) return 'ended';
    if (SETUP.has(card.state)) return 'setup';
    return card.state;
  }

  #drawIdentity(card: Card): void {
    const state = shown(card);
    assign(this.#pill, { 'data-state': state });
    const turns = state === 'starting' || state === 'preparing';
    fill(this.#pill, state, () => [icon(state, 14, turns ? 'dd-turn' : ''), stateWord(state)]);
    setText(this.#name, card.name);
    assign(this.#name, { title: card.name });
    setText(this.#id, card.id);
    setText(this.#shortId, shortId(card.id));
    setText(this.#inline, this.#inlineText(card));
    assign(this.#inline, { title: this.#inlineText(card) });
  }

  #inlineText(card: Card): string {
    const mode = this.#mode(card);
    if (mode === 'setup') return places(card).join(' · ');
    if (mode === 'detached') return [share(card), this.#leftText(card)].filter(Boolean).join(', ');
    if (mode === 'canceling') return stopText(card.stop, card, this.#stillRunning().length, this.clock.now());
    if (card.state === 'lost') return __('No result. Last update %1', clock(card.last_sign));
    return '';
  }

  #drawMeta(card: Card): void {
    const mode = this.#mode(card);
    show(this.#metaRow, mode === 'running' || mode === 'ended');
    const more = mode === 'ended' ? endWords(card, this.clock.now()) : this.#hasWork(card) ? [] : [this.#elapsedText(card)];
    const ranks = mode === 'running' ? this.#ranks : [];
    const compiling = ranks.filter(({ status }) => status === 'compiling').length;
    const words = [...places(card), ...more, ...(compiling ? [`${count(compiling)} ${rankWord('compiling')}`] : [])];
    const { origin = [] } = this.extras;
    const cost = costWords(card, this.clock.now());
    const earlier = card.resumed_from ? this.#continues(card.resumed_from, card.forked_at) : null;
    fill(this.#meta, [...words, cost, card.resumed_from].join('|'), () => [...words.map((word) => h('span', {}, word)), cost && h('span', { title: costSource(card) }, cost), earlier, ...origin]);
    drawHosts(this.#hosts, hostsOf(ranks), card.stall?.ranks ?? []);
  }

  /** The job whose checkpoints this job resumes from. */
  #continues(id: string, step: number | null): HTMLElement {
    const name = onClick(h('button', { type: 'button', class: 'dd-link dd-mono', title: id }, shortId(id)), () => this.actions.openJob(id));
    return h('span', { class: 'dd-origin' }, ...around(step === null ? __('continues %1', HERE) : __('forked from %1 at step %2', HERE, count(step)), name));
  }

  #drawWork(card: Card): void {
    const running = this.#mode(card) === 'running';
    show(this.#workRow, running && this.#hasWork(card));
    setText(this.#percent, share(card));
    show(this.#percent, Boolean(share(card)));
    const words = workWords(card);
    fill(this.#steps, words.join('|'), () => words.map((word) => h('span', {}, word)));
    this.#drawRate();
    setText(this.#elapsed, this.#elapsedText(card));
    setText(this.#left, this.#leftText(card));
    show(this.#left, this.#leftText(card) !== '');
    const known = running && Boolean(card.total) && card.done !== null;
    show(this.#bar, known || this.#mode(card) === 'canceling');
    if (known) this.#drawBar((card.done ?? 0) / (card.total ?? 1), [share(card), this.#leftText(card)].filter(Boolean).join(', '));
  }

  /** "2,065 samples/s", and of more than one rank how much of their time communication and waiting take. */
  #drawRate(): void {
    const { samples_per_second: rate = null, own_share: own = null, ranks = [], straggler = null } = this.#time ?? {};
    // The finding about a slow rank already has its cost.
    const share = own !== null && ranks.length > 1 && straggler === null ? percent(1 - own, 1) : '';
    show(this.#rate, rate !== null || share !== '');
    fill(this.#rate, JSON.stringify([rate, share]), () => [
      rate === null ? null : h('b', {}, __('%1 samples/s', count(Math.round(rate)))),
      share ? h('span', { class: 'dd-sub dd-rateshare', title: __('Share of the time of all ranks. The rest is their own work: data, compute and the time between steps.') }, `${rate === null ? '' : ' · '}${__('%1 communication and waiting', share)}`) : null,
    ]);
  }

  #hasWork(card: Card): boolean {
    return workWords(card).length > 0 || this.#time !== null;
  }

  #elapsedText(card: Card): string {
    const { ran, waited } = spans(card, this.clock.now());
    return waited ? ranAndWaited(ran, waited) : __('%1 elapsed', duration(ran));
  }

  #drawBar(part: number, text: string): void {
    const width = Math.max(0, Math.min(1, part)) * 100;
    this.#fill.style.width = `${width.toFixed(1)}%`;
    assign(this.#bar, { 'aria-valuenow': Math.round(width), 'aria-valuetext': text, 'aria-label': __('Progress') });
  }

  #leftText(card: Card): string {
    // The old throughput does not apply to a stalled job.
    if (card.remaining === null || card.state !== 'running' || card.stall) return '';
    return __('about %1 left', duration(Math.max(0, card.remaining - (this.clock.now() - card.now))));
  }

  #drawStop(card: Card): void {
    const stop = card.stop;
    const shown = this.#mode(card) === 'canceling' && stop !== null;
    show(this.#stopRow, shown);
    if (!shown || !stop) return;
    const now = this.clock.now();
    setText(this.#stopNext, nextSignals(stop, now));
    setText(this.#stopPlaces, stopPlaces(this.#stillRunning()));
    const end = stop.kill_at ?? stop.next_at;
    this.#drawBar(end === null || end <= stop.sent ? 1 : (now - stop.sent) / (end - stop.sent), nextSignals(stop, now));
  }

  #stillRunning(): RankRow[] {
    return this.#ranks.filter(({ status }) => status !== 'ended' && status !== 'failed');
  }

  #isPaused(card: Card): boolean {
    return !ENDED.has(card.state) && this.clock.silence() > this.clock.timeout;
  }

  #drawPaused(card: Card, paused: boolean): void {
    show(this.#paused, paused);
    if (!paused) return;
    const text = this.clock.live ? __('Connection to the Jupyter server lost. Reconnecting…') : __('Shown as of %1', clock(card.now));
    fill(this.#paused, text, () => [icon('warn', 14), h('span', {}, text)]);
    assign(this.#paused, { title: __('The server is not responding. The job keeps running.') });
  }

  #drawButtons(card: Card, paused: boolean): void {
    const running = !ENDED.has(card.state);
    const canceling = card.state === 'canceling';
    show(this.#question, this.#asking);
    show(this.#attach, this.#detached);
    show(this.#detach, this.actions.detach !== undefined && running && !canceling && !SETUP.has(card.state) && !this.#detached && !this.#asking);
    show(this.#cancel, running && !canceling && !this.#detached && !this.#asking);
    show(this.#kill, canceling && !this.#detached);
    show(this.#rerun, !running && card.can_rerun && card.state !== 'failed' && !this.#detached);
    show(this.#resume, !running && card.can_resume && card.state !== 'failed' && !this.#detached);
    this.#drawStacks(card);
    this.#drawProfile(card);
    const blocked = paused || this.#pressed !== null;
    for (const each of [this.#cancel, this.#kill, this.#rerun, this.#resume, this.#detach]) each.disabled = blocked;
    this.#giveFocusBack();
  }

  /** While a job stalls, its own line has the button. */
  #drawStacks(card: Card): void {
    const can = card.can_ask_stacks || card.stacks.length > 0;
    show(this.#stacks, can && !this.#detached && !this.#asking && card.stall === null);
    this.#stall.showTable(!this.#stacksOpen);
    const word = this.#stacksOpen ? __('Hide stacks') : __('Show stacks');
    for (const each of [this.#stacks, this.#stallStacks]) {
      assign(each, { 'aria-expanded': String(this.#stacksOpen) });
      const text = each.querySelector('.dd-word');
      if (text) setText(text, word);
      if (each.title !== word) assign(each, { title: word, 'aria-label': word });
    }
  }

  #drawProfile(card: Card): void {
    const can = card.can_profile || card.profiles.length > 0;
    show(this.#profile, can && !this.#detached && !this.#asking);
    assign(this.#profile, { 'aria-expanded': String(this.#profileOpen) });
  }

  #askOrCancel(): void {
    const card = this.#card;
    if (!card) return;
    if (this.clock.now() - card.created < YOUNG) this.#press('cancel');
    else this.#ask(card);
  }

  #ask(card: Card): void {
    const yes = onClick(button('', __('Yes'), 'dd-danger'), () => this.#answer(true));
    const no = onClick(button('', __('No'), ''), () => this.#answer(false));
    this.#question.replaceChildren(h('span', { class: 'dd-ell' }, __('Cancel %1?', card.name)), yes, no);
    this.#asking = true;
    this.tick();
    no.focus();
  }

  #answer(yes: boolean): void {
    this.#asking = false;
    this.#returning = true;
    if (yes) this.#press('cancel');
    this.tick();
  }

  /** After an answer the focus goes back to the button, as soon as that can take it and unless it went elsewhere. */
  #giveFocusBack(): void {
    if (!this.#returning || this.#cancel.disabled) return;
    this.#returning = false;
    const { activeElement, body } = document;
    const nowhere = activeElement === null || activeElement === body || this.#question.contains(activeElement);
    if (!this.#cancel.hidden && nowhere) this.#cancel.focus();
  }

  #press(what: 'cancel' | 'kill' | 'rerun' | 'resume'): void {
    this.#pressed = what;
    this.tick();
    this.actions[what]();
  }
}

/** Return a button with an icon and a word; narrow panels keep the icon and show the word as a tooltip. */
export function button(name: string, label: string, classes: string): HTMLButtonElement {
  const bare = classes.includes('dd-icon');
  const word = bare ? null : h('span', { class: 'dd-word' }, label);
  return h('button', { type: 'button', class: `dd-btn ${classes}`, title: label, 'aria-label': label }, name ? icon(name) : null, word);
}

/** The button that resumes a job from its checkpoints. */
export function resumeButton(): HTMLButtonElement {
  const press = button('resume', __('Resume'), '');
  press.title = __('Start a new job that resumes from the checkpoints of this one');
  return press;
}

const shown = (card: Card): ShownState => shownState(card.state, card.stall !== null);

function places(card: Card): string[] {
  return [card.compute_target, processes(card.node_count, card.process_count_per_node), card.backend];
}

function share(card: Card): string {
  return card.total && card.done !== null ? percent(card.done, card.total) : '';
}

/** "epoch 62 of 100", "step 744 of 1,200": only what the ranks reported. */
function workWords(card: Card): string[] {
  const words: string[] = [];
  const unit = card.unit || 'step';
  if (card.done !== null) words.push(doneWords(unit, card.done, card.total));
  if (card.step !== null && (card.done === null || unit !== 'step')) words.push(doneWords('step', card.step, null));
  return words;
}

function doneWords(unit: string, done: number, total: number | null): string {
  return total ? __('%1 %2 of %3', unitWord(unit), count(done), count(total)) : __('%1 %2', unitWord(unit), count(done));
}

/** "about 1.23 USD so far", and at the end without the last words; the rate while nothing was spent. */
function costWords({ price_per_hour: price, currency, node_count: nodes, paid_since: since, ended }: Card, now: number): string {
  if (price === null) return '';
  if (since === null) return ended === null ? __('about %1/h', money(price * nodes, currency)) : '';
  const spent = money((Math.max(0, (ended ?? now) - since) / 3600) * price * nodes, currency);
  return ended === null ? __('about %1 so far', spent) : __('about %1', spent);
}

function costSource({ price_per_hour: price, currency, price_source: source, node_count: nodes }: Card): string | null {
  if (price === null) return null;
  const rate = _n('%2/h for %1 node. Price: %3.', '%2/h for %1 nodes. Price: %3.', nodes, money(price * nodes, currency), source);
  return `${rate} ${__('The startup and idle time of nodes is not included.')}`;
}

function endWords(card: Card, now: number): string[] {
  const end = card.ended ?? card.last_sign;
  const { ran, waited } = spans(card, end);
  const words = [waited ? ranAndWaited(ran, waited) : __('ran %1', duration(ran))];
  const day = pastDay(end, now);
  if (card.state === 'failed' || card.state === 'canceled') {
    const at = workWords(card)[0];
    if (at) words.push(__('stopped at %1', at));
  }
  return day ? [`${day}, ${words[0] ?? ''}`, ...words.slice(1)] : words;
}

function stopText(stop: Stop | null, card: Card, left: number, now: number): string {
  if (!stop) return places(card).join(' · ');
  const total = card.node_count * card.process_count_per_node;
  const sent = stop.signal ? __('%1 sent %2', stop.signal, ago(now - stop.sent)) : __('Stopping');
  return `${sent}, ${_n('%1 of %2 still runs', '%1 of %2 still run', left, rankCount(total))}`;
}

function nextSignals(stop: Stop, now: number): string {
  const parts: string[] = [];
  const inSeconds = (at: number): string => duration(Math.max(0, at - now));
  if (stop.next && stop.next_at !== null && stop.next_at > now) parts.push(__('%1 in %2', stop.next, inSeconds(stop.next_at)));
  if (stop.kill_at !== null && stop.next !== 'KILL') parts.push(__('%1 in %2', 'KILL', inSeconds(stop.kill_at)));
  return parts.join(', ');
}

/** Which ranks still run, if they are few. */
function stopPlaces(ranks: RankRow[]): string {
  if (ranks.length > NAMED) return '';
  return ranks.map(({ rank, host, pid }) => [__('rank %1', rank), host, pid === null ? '' : __('pid %1', pid)].filter(Boolean).join(', ')).join('; ');
}

/** One node with its ranks, in the order of the nodes. */
interface Host {
  name: string;
  ranks: RankRow[];
}

function hostsOf(ranks: RankRow[]): Host[] {
  const hosts = new Map<number, Host>();
  for (const rank of ranks) {
    const host = hosts.get(rank.node) ?? { name: '', ranks: [] };
    host.name ||= rank.host;
    host.ranks.push(rank);
    hosts.set(rank.node, host);
  }
  return [...hosts].sort(([a], [b]) => a - b).map(([, host]) => host);
}

/** Draw each rank as a dot beside its node's name; large jobs get one bar a node. */
function drawHosts(element: HTMLElement, hosts: Host[], odd: number[]): void {
  const many = hosts.reduce((sum, { ranks }) => sum + ranks.length, 0);
  const key = JSON.stringify([hosts.map(({ name, ranks }) => [name, ranks.map(({ rank, status }) => [rank, status])]), odd]);
  show(element, hosts.length > 0);
  assign(element, { 'aria-label': hosts.map(hostLabel).join('; ') });
  fill(element, key, () => [
    h('span', { class: 'dd-hosts-all' }, ...hostElements(hosts, odd, many <= DOTS)),
    h('span', { class: 'dd-hosts-few dd-nw' }, rankCount(many)),
  ]);
}

/** Of many hosts only those have a place of their own on which a rank is not ready. */
function hostElements(hosts: Host[], odd: number[], dots: boolean): Child[] {
  if (hosts.length <= HOSTS) return hosts.map((host) => hostElement(host, odd, dots));
  const others = hosts.filter((host) => readyOn(host) < host.ranks.length);
  const ready = __('%1 of %2 nodes ready', count(hosts.length - others.length), count(hosts.length));
  return [...others.slice(0, HOSTS).map((host) => hostElement(host, odd, dots)), h('span', { class: 'dd-sub dd-nw' }, ready)];
}

const readyOn = ({ ranks }: Host): number => ranks.filter(({ status }) => status === 'ready').length;

function hostLabel({ name, ranks }: Host): string {
  const counts = new Map<RankRow['status'], number>();
  for (const { status } of ranks) counts.set(status, (counts.get(status) ?? 0) + 1);
  return `${name ? `${name}: ` : ''}${[...counts].map(([status, many]) => `${many} ${rankWord(status)}`).join(', ')}`;
}

function hostElement(host: Host, odd: number[], dots: boolean): HTMLElement {
  const name = host.name ? h('span', { class: 'dd-sub dd-ell' }, host.name) : null;
  const dot = ({ rank, status }: RankRow): Child => h('i', { class: odd.includes(rank) ? 'dd-dot dd-odd' : 'dd-dot', 'data-status': status, title: __('rank %1: %2', rank, odd.includes(rank) ? __('no progress, differs from the others') : rankWord(status)) });
  const bar = (): Child => h('span', { class: 'dd-hostbar', title: hostLabel(host) }, __('%1 of %2', readyOn(host), host.ranks.length));
  return h('span', { class: 'dd-host' }, name, dots ? h('span', { class: 'dd-dotgrid' }, ...host.ranks.map(dot)) : bar());
}
