/**
 * The sidebar "Distributed training": clusters and jobs of this server.
 *
 * It gets its state (`jobs`, `clusters`, `connection`) and calls `Actions`; it knows
 * neither JupyterLab nor HTTP. Everything that comes from jobs is set as text.
 */
import { fill, h, onClick, setText, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import { InlineConfirm } from '../ui/inlineconfirm';
import { showMessage } from '../ui/refusal';
import { shortId, shownState, stateWord } from '../ui/format';
import { Banner } from './banner';
import { ClusterList } from './clusterlist';
import { FilterBar } from './filterbar';
import { JobList } from './joblist';
import { asksBeforeCancel, isActive, matches, passes, type Filter } from './jobtext';
import { billWords, total } from './costtext';
import { NothingFound, nothingYet, waiting } from './placeholders';
import { Section } from './section';
import { grouped, isStudy, rowCount, titleOf, type Item } from './study';
import type { Actions, ClusterRow, Connection, JobRow } from './types';

/** Milliseconds before the loading placeholder appears. */
const DELAY = 300;

export interface Preferences {
  confirmCancel: 'minute' | 'always' | 'never';
  showClusters: boolean;
}

export class SidebarView {
  #preferences: Preferences = { confirmCancel: 'minute', showClusters: true };
  #clustersTold = false;
  #items: Item[] = [];
  #known = new Map<string, Item>();
  #studies: ReadonlyMap<string, JobRow> = new Map();
  /** The studies whose runs are shown. */
  readonly #unfolded = new Set<string>();
  #answered = false;
  #connection: Connection = { state: 'connecting', heard: null, retry: null, problem: '' };

  readonly #banner: Banner;
  /** The head shows nodes that cost money even if everything is folded or filtered. */
  readonly #bill = h('button', { type: 'button', class: 'dd-sidebar-bill dd-s12 dd-num', hidden: true });
  readonly #clusters: ClusterList;
  readonly #filter = new FilterBar(() => this.#draw());
  readonly #list: JobList;
  readonly #waiting = waiting();
  readonly #nothing: HTMLElement;
  readonly #none = new NothingFound(() => this.#filter.reset());
  readonly #compare: HTMLButtonElement;
  readonly #error = h('div', { class: 'dd-sidebar-error dd-s12 dd-ink-err', role: 'alert', hidden: true });
  readonly #live = h('div', { class: 'dd-sr', role: 'status', 'aria-live': 'polite' });
  readonly #clusterSection: Section;
  readonly #jobSection: Section;

  constructor(readonly root: HTMLElement, private readonly actions: Actions, private readonly pointed: () => void) {
    root.classList.add('dd', 'dd-sidebar');
    root.tabIndex = -1;
    this.#banner = new Banner(() => actions.refresh());
    this.#clusters = new ClusterList(actions);
    this.#list = new JobList(this.#listActions());
    this.#nothing = nothingYet(() => actions.newJob(), actions.quickstart);
    this.#compare = tool('stacks', __('Compare'), () => this.#compareChosen());
    this.#clusterSection = new Section('clusters', __('Clusters'), this.#clusters.element, [tool('plus', __('Add cluster'), () => this.addCluster())], () => undefined);
    const jobs = h('div', { class: 'dd-job-part' }, this.#filter.element, this.#none.element, this.#list.element);
    this.#jobSection = new Section('jobs', __('Jobs'), jobs, [this.#compare], () => this.#draw());
    onClick(this.#bill, () => this.#showBilled());
    root.append(this.#head(), this.#bill, this.#banner.element, this.#error, this.#waiting, this.#clusterSection.element, this.#nothing, this.#jobSection.element, this.#live);
    root.addEventListener('keydown', (event) => this.#key(event));
    this.#drawClusters();
    show(this.#waiting, false);
    setTimeout(() => show(this.#waiting, !this.#answered), DELAY);
    this.#draw();
  }

  /** The job that commands without an id mean. */
  get active(): JobRow | null {
    return this.#list.active;
  }

  get chosen(): string[] {
    return this.#list.chosen;
  }

  /** Show these jobs and the rows of the studies that some are runs of, or will be; the newest first. */
  jobs(rows: readonly JobRow[], studies: readonly JobRow[]): void {
    const now = this.#now();
    this.#announce([...studies, ...rows.filter(({ group }) => !group)]);
    this.#studies = new Map(studies.map((row) => [row.id, row]));
    const withRuns = new Set(rows.map(({ group }) => group?.id));
    const alone = studies.filter(({ id }) => !withRuns.has(id));
    const listed = alone.length ? [...rows, ...alone].sort((a, b) => (a.id < b.id ? 1 : -1)) : rows;
    this.#items = listed.map((row) => this.#same(row) ?? { row, heard: now });
    this.#known = new Map(this.#items.map((item) => [item.row.id, item]));
    const waited = !this.#answered && document.activeElement === this.root;
    this.#answered = true;
    this.#draw();
    if (waited) this.focus();
  }

  /** Show these clusters. */
  clusters(clusters: readonly ClusterRow[]): void {
    this.#clustersTold = true;
    this.#clusterSection.count = clusters.length;
    this.#clusters.show(clusters);
    this.#drawClusters();
    this.#drawBill(clusters);
  }

  #drawBill(clusters: readonly ClusterRow[]): void {
    const words = billWords(total(clusters));
    show(this.#bill, words !== '');
    fill(this.#bill, words, () => [icon('warn', 14, 'dd-ink-warn'), h('span', {}, words)]);
  }

  #showBilled(): void {
    show(this.#clusterSection.element, true);
    this.#clusterSection.open = true;
    this.#clusters.revealBilled();
  }

  /** Show a newer state of one cluster. */
  cluster(cluster: ClusterRow): void {
    this.#clusters.view(cluster.name)?.update(cluster);
  }

  set preferences(preferences: Preferences) {
    this.#preferences = preferences;
    this.#drawClusters();
  }

  #drawClusters(): void {
    show(this.#clusterSection.element, this.#clustersTold && this.#preferences.showClusters);
  }

  /** Show whether the values are up to date. */
  connection(connection: Connection): void {
    // A new try is not an answer yet: the banner stays until there is one.
    const trying = connection.state === 'connecting' && this.#stale;
    this.#connection = trying ? { ...this.#connection, retry: null } : connection;
    this.tick();
  }

  /** Redraw what depends on the time; to be called about once a second while the sidebar is seen. */
  tick(): void {
    this.#banner.update(this.#connection, this.#now());
    this.#list.tick(this.#now(), this.#stale);
  }

  /** Put the focus on the list of jobs; before the first answer it waits on the sidebar as a whole. */
  focus(): void {
    if (!this.#answered) this.root.focus();
    else if (!this.#jobSection.element.hidden) this.#list.focus();
    else this.#nothing.querySelector('button')?.focus();
  }

  /** Mark the job whose page is in front. */
  front(id: string | null): void {
    this.#list.choose(id);
  }

  /** Open the form that adds a cluster. */
  addCluster(): void {
    show(this.#clusterSection.element, true);
    this.#clusterSection.open = true;
    this.#clusters.add();
  }

  /** Confirm and remove the cluster whose menu is open. */
  removeCluster(): void {
    this.#clusters.pointed?.askRemove();
  }

  /** Check the cluster whose menu is open. */
  checkCluster(): void {
    this.#clusters.pointed?.check();
  }

  /** Return whether canceling this job needs confirmation. */
  asksToCancel(row: JobRow): boolean {
    return row.state === 'canceling' || asksBeforeCancel(row, this.#now(), this.#preferences.confirmCancel);
  }

  /** Cancel a job, with confirmation if it is older than a minute or the settings require it; kill it if it is already canceling. */
  async cancel(id: string): Promise<void> {
    const row = this.#known.get(id)?.row;
    if (!row || !isActive(row)) return;
    const now = row.state === 'canceling';
    const text = now ? __('Kill %1 now?', row.name) : __('Cancel %1?', row.name);
    if (this.asksToCancel(row) && !(await this.#list.ask(id, new InlineConfirm(text)))) return;
    await this.#do(this.actions.cancel(row, now));
  }

  /** Delete an ended job after confirmation. */
  async remove(id: string): Promise<void> {
    const row = this.#known.get(id)?.row;
    if (!row || isActive(row)) return;
    const text = __('Delete 1 job, %1 %2, with its log and outputs?', row.name, shortId(id));
    if (await this.#list.ask(id, new InlineConfirm(text, __('Delete'), __('Keep')))) await this.#do(this.actions.remove(row));
  }

  /** Return whether a job is in the list now, so that a confirmation can be shown there. */
  shows(id: string): boolean {
    return this.root.offsetParent !== null && this.#jobSection.open && this.#shown().some(({ row }) => row.id === id);
  }

  #listActions(): ConstructorParameters<typeof JobList>[0] {
    const row = (id: string, action: (row: JobRow) => void): void => {
      const match = this.#known.get(id)?.row;
      if (match) action(match);
    };
    return {
      open: (id) => (this.#studies.has(id) ? this.#openStudy(id) : row(id, (job) => this.actions.open(job))),
      cancel: (id) => void (this.#studies.has(id) ? this.#cancelRun(id) : this.cancel(id)),
      rerun: (id) => row(id, (job) => void this.#do(this.actions.rerun(job))),
      unfold: (id, on) => this.#unfold(id, on),
      discard: (id) => (this.#studies.has(id) ? void this.#removeStudy(id) : row(id, (job) => void (isActive(job) ? this.cancel(id) : this.remove(id)))),
      pointed: () => this.#pointed(),
    };
  }

  #runs(id: string): JobRow[] {
    return this.#items.flatMap(({ row }) => (row.group?.id === id && !isStudy(row) ? [row] : []));
  }

  /** Show a sweep's page; a scaling study has none, so show or hide its runs. */
  #openStudy(id: string): void {
    if (this.#studies.get(id)?.group?.kind === 'sweep') this.actions.openSweep(id);
    else this.#unfold(id, !this.#unfolded.has(id));
  }

  #unfold(id: string, on: boolean): void {
    if (!this.#runs(id).length) return;
    if (on) this.#unfolded.add(id);
    else this.#unfolded.delete(id);
    this.#draw();
  }

  /** Cancel the active run of a study, which ends the study. */
  async #cancelRun(id: string): Promise<void> {
    const run = this.#runs(id).find(isActive);
    if (this.#studies.get(id)?.group?.kind === 'sweep') {
      if (await this.#list.ask(id, new InlineConfirm(__('Stop the sweep and cancel its running trials?')))) await this.#do(this.actions.stopSweep(id));
      return;
    }
    if (!run) return;
    this.#unfold(id, true);
    await this.cancel(run.id);
  }

  /** Delete a study with all its runs, after a question; cancel one that is running. */
  async #removeStudy(id: string): Promise<void> {
    const [runs, study] = [this.#runs(id), this.#studies.get(id)];
    if (!study || isActive(study) || runs.some(isActive)) return this.#cancelRun(id);
    const text = runs.length ? _n('Delete %1 job of %2 with its log and outputs?', 'Delete %1 jobs of %2 with their logs and outputs?', runs.length, study.group?.name ?? '') : __('Delete %1?', titleOf(study));
    if (await this.#list.ask(id, new InlineConfirm(text, __('Delete'), __('Keep')))) {
      if (study.group?.kind === 'sweep') await this.#do(this.actions.removeSweep(id));
      else for (const run of runs) await this.#do(this.actions.remove(run));
    }
  }

  #head(): HTMLElement {
    const title = h('h2', { class: 'dd-sidebar-title dd-b dd-grow dd-ell' }, __('Distributed training'));
    const tools = [tool('plus', __('New job'), () => this.actions.newJob()), tool('rerun', __('Refresh'), () => this.actions.refresh()), tool('gear', __('Settings'), () => this.actions.settings())];
    return h('div', { class: 'dd-row dd-sidebar-head' }, title, ...tools);
  }

  #now(): number {
    return Date.now() / 1000;
  }

  get #stale(): boolean {
    return this.#connection.state === 'down';
  }

  /** The item of a row that has not been sent anew. */
  #same(row: JobRow): Item | null {
    const item = this.#known.get(row.id);
    return item?.row === row ? item : null;
  }

  #shown(): Item[] {
    const { filter, words } = this.#filter;
    return grouped(this.#items, this.#studies, this.#unfolded, (row) => passes(row, filter) && matches(row, words));
  }

  #count(filter: Filter): number {
    return rowCount(this.#items, this.#studies, (row) => passes(row, filter));
  }

  #draw(): void {
    const empty = this.#items.length === 0;
    const shown = this.#shown();
    if (this.#answered) show(this.#waiting, false);
    this.root.setAttribute('aria-busy', String(!this.#answered));
    show(this.#nothing, this.#answered && empty);
    show(this.#jobSection.element, !empty);
    this.#none.update(!empty && shown.length === 0, this.#filter.words);
    this.#filter.counts(this.#count('active'), this.#count('queued'), this.#count('failed'));
    this.#jobSection.counts(shown.filter(({ inside }) => !inside).length, this.#count('all'));
    this.#list.show(shown, this.#now(), this.#stale);
    this.#drawCompare();
  }

  #pointed(): void {
    this.#drawCompare();
    this.pointed();
  }

  #compareChosen(): void {
    const ids = this.#list.chosen;
    if (ids.length > 1) this.actions.compare(ids);
    else this.#list.focus();
  }

  #drawCompare(): void {
    const many = this.#list.chosen.length;
    this.#compare.setAttribute('aria-disabled', String(many < 2));
    this.#compare.title = many < 2 ? __('Compare: choose two jobs or more with Ctrl+click or the space bar') : __('Compare %1 jobs', many);
  }

  /** Announce changed states to screen readers: politely, once, newest first. */
  #announce(rows: readonly JobRow[]): void {
    if (!this.#answered) return;
    const changed = rows.filter((row) => wordOf(this.#known.get(row.id)?.row ?? this.#studies.get(row.id) ?? row) !== wordOf(row));
    if (changed.length) setText(this.#live, changed.slice(0, 3).map((row) => `${titleOf(row)} ${shortId(row.id)}: ${wordOf(row)}`).join('; '));
  }

  async #do(request: Promise<unknown>): Promise<void> {
    this.#showMessage('');
    try {
      await request;
    } catch (error) {
      this.#showMessage(error);
    }
  }

  #showMessage(what: unknown): void {
    showMessage(this.#error, what);
  }

  #key(event: KeyboardEvent): void {
    const typing = event.target instanceof HTMLElement && event.target.closest('input, textarea, select') !== null;
    if (event.key !== '/' || typing || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.#filter.focus();
  }
}

const wordOf = (row: JobRow): string => stateWord(shownState(row.state, row.stalled));

function tool(name: string, title: string, action: () => void): HTMLButtonElement {
  return onClick(h('button', { type: 'button', class: 'dd-btn dd-icon dd-quiet', title, 'aria-label': title }, icon(name)), action);
}
