/**
 * Recorded steps of a job: the operators that take the most time, rank by rank, and the traces. It requests the next steps of all
 * or some ranks; the job's card has the progress, and then the profile is read.
 */
import { assign, fill, h, onClick, quoted, show, type Child } from '../ui/dom';
import { clock, count, number, percent, rankSpans } from '../ui/format';
import { showMessage, sentences } from '../ui/refusal';
import { __, _n } from '../ui/trans';
import type { components } from '../api/schema';
import type { Card } from './card';
import { button } from './header';

export type JobProfile = components['schemas']['JobProfile'];
type Operator = JobProfile['operators'][number];
type ProfileStatus = Card['profiles'][number];

/** Requests and reads profiles. */
export interface ProfileSource {
  /** Record the next `steps` steps of `ranks`; null means all ranks. */
  ask(steps: number, ranks: number[] | null): Promise<unknown>;
  read(number: number): Promise<JobProfile>;
  /** Return the URL of a rank's trace. */
  trace(number: number, rank: number): string;
}

/** Maximum number of rank columns, and of steps per profile. */
const [COLUMNS, MOST] = [8, 50];

export class ProfileView {
  #card: Card | null = null;
  #open = false;
  #shown: JobProfile | null = null;
  #requested = 0;
  #problem: unknown = '';
  /** Number of the newest profile at the time of the request; null if none is pending. */
  #pending: number | null = null;
  readonly #status = h('span', { class: 'dd-sub dd-s12 dd-ell', role: 'status' });
  readonly #steps = h('input', { class: 'dd-input dd-s12', type: 'number', min: 1, max: MOST, value: 5, 'aria-label': __('Steps to record') });
  readonly #ranks = h('input', { class: 'dd-input dd-s12', type: 'text', placeholder: __('all ranks'), 'aria-label': __('Ranks to record, such as 0,1') });
  readonly #record = button('record', __('Record'), 'dd-small dd-primary');
  readonly #earlier = h('select', { class: 'dd-select dd-s12', 'aria-label': __('Profiles recorded') });
  readonly #close = button('close', __('Close the profile'), 'dd-quiet dd-icon');
  readonly #controls = h('span', { class: 'dd-row dd-profileasks' }, this.#steps, h('span', { class: 'dd-sub dd-s12' }, __('steps of')), this.#ranks, this.#record);
  readonly #body = h('div', { class: 'dd-profilebody' });

  constructor(
    readonly root: HTMLElement,
    private readonly source: ProfileSource,
    private readonly changed: (open: boolean) => void,
  ) {
    root.classList.add('dd-profile', 'dd-gone');
    assign(root, { role: 'region', 'aria-label': __('Profile') });
    const title = h('h3', { class: 'dd-h3 dd-nw' }, __('Profile'));
    root.append(h('div', { class: 'dd-part' }, title, this.#status, h('span', { class: 'dd-grow' }), this.#controls, this.#earlier, this.#close), this.#body);
    onClick(this.#record, () => this.#ask());
    onClick(this.#close, () => this.toggle());
    this.#earlier.addEventListener('change', () => void this.#read(Number(this.#earlier.value)));
    root.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') this.toggle();
      if (event.key === 'Enter' && (event.target === this.#steps || event.target === this.#ranks)) this.#ask();
    });
  }

  /** Show a newer card and read the requested profile once it is available. */
  update(card: Card): void {
    this.#card = card;
    const newest = card.profiles.at(-1);
    if (this.#pending !== null && newest && newest.number > this.#pending && ended(newest)) {
      this.#pending = null;
      this.#problem = newest.status === 'failed' ? newest.why || __('The job has ended before the steps were recorded.') : '';
    }
    // Another view may have requested it.
    const done = card.profiles.filter(({ status }) => status === 'done').at(-1);
    if (this.#open && done && done.number > this.#requested) void this.#read(done.number);
    this.#draw();
  }

  toggle(): void {
    this.#open = !this.#open;
    const newest = this.#card?.profiles.filter(({ status }) => status === 'done').at(-1);
    if (this.#open && newest && !this.#shown) void this.#read(newest.number);
    this.#draw();
    this.changed(this.#open);
  }

  #ask(): void {
    const steps = Number(this.#steps.value);
    const fields = this.#ranks.value.split(/[\s,]+/).filter(Boolean);
    const ranks = fields.length ? fields.map(Number) : null;
    if (this.#pending !== null || !this.#card?.can_profile) return;
    if (!Number.isInteger(steps) || steps < 1 || steps > MOST) return this.#refuse(__('A profile has 1 to %1 steps.', MOST));
    if (ranks?.some((rank) => !Number.isInteger(rank))) return this.#refuse(__('Enter ranks as numbers, for example 0,1.'));
    this.#problem = '';
    this.#pending = this.#card.profiles.at(-1)?.number ?? 0;
    this.#draw();
    this.source.ask(steps, ranks).catch((error: unknown) => {
      this.#pending = null;
      this.#refuse(error);
    });
  }

  #refuse(problem: unknown): void {
    this.#problem = problem;
    this.#draw();
  }

  async #read(number: number): Promise<void> {
    this.#requested = number;
    try {
      const profile = await this.source.read(number);
      if (this.#requested === number) [this.#shown, this.#problem] = [profile, ''];
      this.#draw();
    } catch (error) {
      this.#refuse(error);
    }
  }

  #draw(): void {
    const card = this.#card;
    this.root.classList.toggle('dd-gone', !this.#open);
    if (!this.#open || !card) return;
    const active = card.profiles.find((profile) => !ended(profile));
    const shown = this.#shown;
    const message = active ? progress(active) : this.#pending !== null ? __('Waiting for the ranks') : this.#problem || (shown ? recorded(shown) : empty(card));
    const bad = !active && this.#pending === null && this.#problem !== '';
    showMessage(this.#status, message);
    assign(this.#status, { title: bad ? null : sentences(message) });
    this.#status.classList.toggle('dd-ink-err', bad);
    this.#status.classList.toggle('dd-ell', !bad);
    show(this.#controls, card.can_profile || active !== undefined);
    assign(this.#record, { 'aria-disabled': (active !== undefined || this.#pending !== null) && 'true' });
    this.#drawEarlier(card);
    fill(this.#body, JSON.stringify([shown?.number, shown?.t]), () => (shown ? this.#content(shown) : []));
  }

  #drawEarlier({ profiles }: Card): void {
    const done = profiles.filter(({ status }) => status === 'done');
    show(this.#earlier, done.length > 1);
    fill(this.#earlier, JSON.stringify(done), () => [...done].reverse().map(({ number, t, steps }) => h('option', { value: number }, `${clock(t)}, ${_n('%1 step', '%1 steps', steps)}`)));
    if (this.#shown) this.#earlier.value = String(this.#shown.number);
  }

  #content(shown: JobProfile): Child[] {
    const notes = shown.sentences.map((text) => h('div', { class: 'dd-sub dd-s12' }, ...quoted(text)));
    return [...notes, this.#traces(shown), h('div', { class: 'dd-table dd-profiletable' }, table(shown))];
  }

  #traces({ number, traces }: JobProfile): HTMLElement | null {
    const { trace } = this.source;
    if (!traces.length) return null;
    const title = __('Chrome trace; ui.perfetto.dev opens it');
    const links = traces.flatMap((rank) => [' ', h('a', { class: 'dd-link', href: trace(number, rank), download: '', title }, __('rank %1', rank))]);
    return h('div', { class: 'dd-sub dd-s12' }, __('Download the trace of'), ...links);
  }
}

const ended = ({ status }: ProfileStatus): boolean => status === 'done' || status === 'failed';
const ms = (seconds: number): string => number(Number((seconds * 1000).toPrecision(seconds < 0.01 ? 2 : 3)));

function progress({ status, steps, recorded: done }: ProfileStatus): string {
  if (status === 'recording') return __('Recording step %1 of %2', count(Math.min(done + 1, steps)), count(steps));
  return status === 'saving' ? __('Saving the traces') : __('Waiting for the next step');
}

function recorded({ t, steps, ranks, seconds }: JobProfile): string {
  const rankNames = rankSpans(ranks.map(({ rank }) => rank));
  return _n('%2, %1 step of %3, %4 ms per step', '%2, %1 steps of %3, %4 ms per step', steps, clock(t), rankNames, ms(seconds));
}

function empty(card: Card): string {
  return card.can_profile ? __('Records the next training steps of the ranks; they are slower meanwhile.') : __('Nothing was recorded.');
}

function table({ operators, ranks }: JobProfile): HTMLElement {
  const columns = ranks.length > 1 ? ranks.slice(0, COLUMNS) : [];
  const right = (text: string, title = ''): HTMLElement => h('th', { class: 'dd-right', title: title || null }, text);
  const head = h('tr', {}, h('th', {}, __('Operator')), right(__('Calls per step')), right(__('Own ms per step'), __('Excludes the operators that it calls')), right(__('Share of the step')), ...columns.map(({ rank, host }) => right(__('rank %1', rank), host)));
  return h('table', {}, h('thead', {}, head), h('tbody', {}, ...operators.map((operator) => row(operator, ranks, columns.length))));
}

function row(operator: Operator, ranks: JobProfile['ranks'], columns: number): HTMLElement {
  const cell = (text: string): HTMLElement => h('td', { class: 'dd-right dd-num' }, text);
  const name = h('td', { class: 'dd-profilename' }, h('span', { class: 'dd-row' }, h('i', { class: `dd-rolekey dd-role-${operator.kind === 'communication' ? 'communication' : 'compute'}` }), h('span', { class: 'dd-mono dd-ell', title: operator.name }, operator.name)));
  const each = ranks.slice(0, columns).map(({ rank }) => cell(ms(operator.by_rank[rank] ?? 0)));
  return h('tr', {}, name, cell(number(Number(operator.calls.toPrecision(3)))), cell(ms(operator.self_seconds)), cell(percent(operator.share, 1)), ...each);
}
