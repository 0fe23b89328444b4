/**
 * A job's own page: head, tabs, and below them the overview (failure, curve, ranks, log), the whole log, the spec, the
 * captured names, the files. It knows no JupyterLab; a `PageHost` brings what it shows and carries out what is pressed.
 */
import { capturedPart, checkpointsPart, empty, outputsPart, specPart, trackersPart, type CheckpointRow, type JobDetail, type OutputFile, type TrackerRecord } from './detail';
import type { Card } from './card';
import { CheckView } from './checkview';
import { fill, h, onClick, setText, show } from '../ui/dom';
import { button } from './header';
import { icon } from '../ui/icons';
import { explained } from '../ui/refusal';
import { JobView, type JobHost, type JobMessage, type Parts } from './jobview';
import { __ } from '../ui/trans';
import { newLogViewState } from './logview';
import type { JobCheck } from '../api/schema';
import type { Choice } from './picker';
import { RanksTable } from './rankstable';
import { Tabs } from '../ui/tabs';
import { ENDED, clock, duration } from '../ui/format';

/** State of the connection, with times of the last message and the next retry in epoch seconds of the page's clock. */
export interface Connection {
  live: boolean;
  lastHeard: number | null;
  nextTry: number | null;
}

/** Seconds without a message before the page shows a warning. */
const SHORT = 3;

export interface PageHost extends JobHost {
  connection(): Connection;
  tryNow(): void;
  detail(): Promise<JobDetail>;
  outputs(): Promise<OutputFile[]>;
  checkpoints(): Promise<CheckpointRow[]>;
  /** Start a new job that resumes from a checkpoint, and show it. */
  fork(path: string): Promise<void>;
  trackers(): Promise<TrackerRecord[]>;
  outputAddress(path: string): string;
  logAddress(rank: number | null): string;
  /** Check the code of the job, as a job of its own. */
  check(): void;
  /** How far the check is whose first run this job is. */
  checked(): Promise<JobCheck>;
  /** Open the menu of rarer actions below a button. */
  menu(below: HTMLElement): void;
  /** Bring a line of the job's cell into view; the cell's count may be another's of the same notebook. */
  openCell(detail: JobDetail, cell: number | null, line: number): void;
  changed(message: JobMessage): void;
}

/** State of a page that is kept across a reload of the browser. */
export interface PageState {
  tab: string;
  choice: Choice;
}

/** Milliseconds between requests for the outputs while a tracker is being written. */
const AGAIN = 3000;

export class JobPageView {
  readonly #banner = h('div', { class: 'dd-unreached dd-row', role: 'status', hidden: true });
  readonly #started = h('span', { class: 'dd-origin' });
  readonly #from = h('span', { class: 'dd-origin' });
  readonly #check = button('check', __('Check'), 'dd-quiet dd-tool');
  readonly #checkBox = h('div', { class: 'dd-box dd-checkbox' });
  readonly #found: CheckView;
  readonly #menu = button('dots', __('More actions'), 'dd-quiet dd-icon');
  readonly #download = h('a', { class: 'dd-btn dd-quiet dd-icon', title: __('Download the log'), 'aria-label': __('Download the log'), download: '' }, icon('download'));
  readonly #overview = h('div', { class: 'dd-overview' });
  readonly #logBox = h('div', { class: 'dd-box dd-logbox' });
  readonly #spec = h('div', { class: 'dd-sheet' });
  readonly #captured = h('div', { class: 'dd-sheet' });
  readonly #outputs = h('div', { class: 'dd-sheet' });
  readonly #ranksBox = h('div', { class: 'dd-box' });
  readonly #ranks = new RanksTable(this.#ranksBox);
  readonly #place = { ...newLogViewState(), folded: false };
  readonly #timer: ReturnType<typeof setInterval>;
  #again: ReturnType<typeof setTimeout> | undefined;
  readonly #tabs: Tabs;
  readonly #view: JobView;
  #detail: JobDetail | null = null;
  #ended = '';
  readonly #opened = Date.now() / 1000;

  constructor(private readonly root: HTMLElement, private readonly host: PageHost, state: PageState, keep: (state: PageState) => void) {
    root.classList.add('dd', 'dd-page');
    this.#found = new CheckView(this.#checkBox, () => host.checked(), host.openJob);
    let choice = state.choice;
    this.#tabs = this.#makeTabs(() => keep({ tab: this.#tabs.current, choice }));
    this.#view = new JobView(root, host, {
      layout: (parts) => this.#layout(parts),
      extras: { first: [this.#check], more: [this.#menu], origin: [this.#started, this.#from] },
      place: this.#place,
      choice: state.choice,
      reach: (_root, cell) => this.#reach(cell),
      changed: (message) => this.#changed(message),
      used: (message) => this.#ranks.use(message),
      gone: () => this.#isGone(),
      stacksOpened: () => this.#tabs.choose('overview'),
      chose: (next) => {
        choice = next;
        keep({ tab: this.#tabs.current, choice });
      },
    });
    this.#view.openFigures();
    this.#check.title = __('Check the code with short runs on several ranks and on one process');
    onClick(this.#check, () => host.check());
    show(this.#check, false);
    onClick(this.#menu, () => host.menu(this.#menu));
    onClick(this.#download, () => this.#download.setAttribute('href', host.logAddress(this.#place.rank)));
    this.#download.setAttribute('href', host.logAddress(null));
    this.#tabs.choose(state.tab || 'overview');
    this.#timer = setInterval(() => this.#drawConnection(), 500);
  }

  /** The page has come into sight. */
  refresh(): void {
    this.#view.refresh();
  }

  /** Show the stacks. */
  showStacks(): void {
    this.#view.showStacks();
  }

  /** Show an error at the page's foot. */
  say(problem: unknown): void {
    this.#view.say(problem);
  }

  dispose(): void {
    clearInterval(this.#timer);
    clearTimeout(this.#again);
    this.#found.dispose();
    this.#view.dispose();
  }

  #makeTabs(keep: () => void): Tabs {
    const tabs = [
      { key: 'overview', word: __('Overview') },
      { key: 'log', word: __('Log') },
      { key: 'spec', word: __('Spec') },
      { key: 'captured', word: __('Captured names') },
      { key: 'outputs', word: __('Outputs') },
    ];
    const panels = { overview: [this.#overview, this.#logBox], log: [this.#logBox], spec: [this.#spec], captured: [this.#captured], outputs: [this.#outputs] };
    return new Tabs(tabs, panels, (key) => {
      this.root.setAttribute('data-tab', key);
      if (key === 'outputs') this.#loadOutputs();
      this.#view?.refresh();
      keep();
    });
  }

  #layout({ head, failure, setup, stacks, profile, pictures, finding, curve, log, time, resources, foot }: Parts): void {
    const boxed = (...classes: string[]) => (part: HTMLElement): HTMLElement => h('div', { class: ['dd-box', ...classes].join(' ') }, part);
    this.#overview.append(this.#checkBox, boxed('dd-failbox')(failure), boxed('dd-setupbox')(setup), boxed('dd-findingbox')(finding), boxed('dd-stackbox')(stacks), boxed('dd-stackbox')(profile), boxed('dd-resourcebox')(time), boxed('dd-curvebox')(curve), boxed('dd-resourcebox')(resources), boxed('dd-picturebox')(pictures), this.#ranksBox, boxed('dd-footbox')(foot));
    this.#logBox.append(log);
    log.querySelector('.dd-part')?.append(this.#download);
    const body = h('div', { class: 'dd-pagebody' }, this.#overview, this.#logBox, this.#spec, this.#captured, this.#outputs);
    this.root.append(this.#banner, head, this.#tabs.bar, body);
  }

  #changed(message: JobMessage): void {
    const { card, ranks } = message;
    this.#ranks.update(ranks, card.state === 'canceling' || card.state === 'canceled', card.stall?.ranks);
    setText(this.#started, startedText(card));
    show(this.#started, !ENDED.has(card.state));
    this.host.changed(message);
    // The spec is written once; files and versions are known at the end, so they are requested again then.
    const ended = String(ENDED.has(card.state));
    if (ended === this.#ended) return;
    this.#ended = ended;
    void this.#loadDetail();
    if (this.#tabs.current === 'outputs') this.#loadOutputs();
  }

  /** Nothing more can be done with a job that is not there. */
  #isGone(): void {
    this.root.classList.remove('dd-loading');
    for (const each of [this.#check, this.#menu, this.#download]) show(each, false);
    if (this.#view.message) return;
    this.root.replaceChildren(empty(__('This job is not on this server.')));
  }

  async #loadDetail(): Promise<void> {
    try {
      this.#detail = await this.host.detail();
    } catch (error) {
      if (!this.#detail) this.#spec.replaceChildren(problem(error));
      return;
    }
    const detail = this.#detail;
    fill(this.#spec, JSON.stringify([detail.spec, detail.source.code, detail.versions]), () => specPart(detail));
    fill(this.#captured, JSON.stringify(detail.captured), () => capturedPart(detail));
    this.#drawOrigin(detail);
    show(this.#check, detail.card.can_rerun && !detail.is_check);
    if (detail.is_check) this.#found.begin();
    this.#view.refresh();
  }

  #drawOrigin(detail: JobDetail): void {
    const { notebook, execution_count: number } = detail.source;
    const name = notebook.split('/').at(-1) ?? '';
    show(this.#from, name !== '');
    const word = number === null ? name : `${name} [${number}]`;
    const link = onClick(h('button', { type: 'button', class: 'dd-link', title: notebook }, word), () => this.host.openCell(detail, number, 1));
    fill(this.#from, word, () => [__('from'), ' ', link]);
  }

  #loadOutputs(): void {
    Promise.all([this.host.outputs(), this.host.checkpoints(), this.host.trackers()]).then(
      ([files, table, trackers]) => {
        fill(this.#outputs, JSON.stringify([files, table, trackers]), () => [
          ...trackersPart(trackers),
          ...checkpointsPart(table, (path) => this.#fork(path)),
          ...outputsPart(files, (path) => this.host.outputAddress(path)),
        ]);
        if (trackers.every(({ done }) => done)) return;
        clearTimeout(this.#again);
        this.#again = setTimeout(() => this.#tabs.current === 'outputs' && this.root.isConnected && this.#loadOutputs(), AGAIN);
      },
      (error: unknown) => this.#outputs.replaceChildren(problem(error)),
    );
  }

  async #fork(path: string): Promise<void> {
    try {
      await this.host.fork(path);
    } catch (error) {
      this.say(error);
    }
  }

  #reach(cell: number | null): ((line: number) => void) | null {
    const detail = this.#detail;
    if (!detail?.source.notebook || cell === null) return null;
    return (line) => this.host.openCell(detail, cell, line);
  }

  #drawConnection(): void {
    const { live, lastHeard, nextTry } = this.host.connection();
    const now = Date.now() / 1000;
    const seconds = nextTry === null ? null : Math.max(0, Math.ceil(nextTry - now));
    const silent = !live && now - (lastHeard ?? this.#opened) > SHORT;
    show(this.#banner, silent);
    if (!silent) return;
    const next = seconds ? __('Next try in %1.', duration(seconds)) : __('Trying now.');
    const shown = lastHeard === null ? '' : ` ${__('Shown: %1.', clock(lastHeard))}`;
    fill(this.#banner, 'silent', () => [
      icon('warn', 16, 'dd-ink-warn'),
      h('b', { class: 'dd-nw' }, __('Server not responding')),
      h('span', { class: 'dd-grow dd-ell' }),
      onClick(button('', __('Try now'), 'dd-small'), () => this.host.tryNow()),
    ]);
    const text = this.#banner.querySelector('.dd-grow');
    if (text) setText(text, `${__('Jobs keep running.')} ${next}${shown}`);
  }
}

function problem(error: unknown): HTMLElement {
  return h('p', { class: 'dd-empty dd-ink-err', role: 'alert' }, ...explained(error));
}

/** When a job that lives was started, or submitted where it still waits. */
function startedText(card: Card): string {
  if (ENDED.has(card.state)) return '';
  return card.queued_since === null ? __('started %1', clock(card.created + card.waited)) : __('submitted %1', clock(card.created));
}
