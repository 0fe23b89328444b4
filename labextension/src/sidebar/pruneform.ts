/** The form that deletes old jobs: it lists the jobs and their size before anything is deleted. */
import { h, onClick, setText, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import { say } from '../ui/refusal';
import { fieldId } from '../form/schemafields';
import { ago, bytes, count, listing, shortId, stateWord } from '../ui/format';
import type { KeptJobs, OldJob, Prune, Pruned } from './types';

export interface PruneFormActions {
  prune(wanted: Prune): Promise<Pruned>;
  /** The form is done with. */
  closed(): void;
}

/** Default values of the fields. */
const DAYS = 30;
const NEWEST = 50;
/** More rows tell nobody more. */
const ROWS = 200;
/** Milliseconds after the last key before the search starts. */
const PAUSE = 300;

export class PruneForm {
  readonly element: HTMLFormElement;
  readonly #days = field(DAYS);
  readonly #keep = field(NEWEST);
  readonly #list = h('ul', { class: 'dd-prune-list dd-s12', 'aria-label': __('Jobs to delete'), hidden: true });
  readonly #total = h('div', { class: 'dd-s12 dd-b', role: 'status' });
  readonly #kept = h('div', { class: 'dd-s12 dd-sub', hidden: true });
  readonly #error = h('div', { class: 'dd-s12 dd-ink-err', role: 'alert', hidden: true });
  readonly #delete = h('button', { type: 'button', class: 'dd-btn dd-small dd-danger' });
  #shown: readonly OldJob[] = [];
  #asked: Prune = {};
  /** Of two answers only that to the last question counts. */
  #question = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly actions: PruneFormActions) {
    const days = h('label', { for: this.#days.id, class: 'dd-s12 dd-grow' }, __('Older than (days)'));
    const keep = h('label', { for: this.#keep.id, class: 'dd-s12 dd-grow' }, __('Always keep the newest'));
    const close = onClick(h('button', { type: 'button', class: 'dd-btn dd-small' }, __('Close')), () => this.#close());
    const rows = [h('div', { class: 'dd-b' }, __('Delete old jobs')), h('div', { class: 'dd-row' }, days, this.#days), h('div', { class: 'dd-row' }, keep, this.#keep)];
    this.element = h('form', { class: 'dd-cluster-form dd-prune', 'aria-label': __('Delete old jobs'), novalidate: true }, ...rows, this.#list, this.#total, this.#kept, this.#error, h('div', { class: 'dd-row' }, this.#delete, close));
    onClick(this.#delete, () => void this.#prune());
    this.element.addEventListener('input', () => this.#later());
    this.element.addEventListener('submit', (event) => {
      event.preventDefault();
      void this.#look();
    });
    this.element.addEventListener('keydown', (event) => {
      event.stopPropagation();
      if (event.key === 'Escape') this.#close();
    });
  }

  /** Search for old jobs and focus the age field. */
  open(): void {
    this.#days.focus();
    void this.#look();
  }

  #close(): void {
    this.#question += 1;
    clearTimeout(this.#timer);
    this.actions.closed();
  }

  #later(): void {
    this.#empty(__('Searching for old jobs'));
    this.#question += 1;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#look(), PAUSE);
  }

  async #look(): Promise<void> {
    clearTimeout(this.#timer);
    this.#empty(__('Searching for old jobs'));
    const [days, keep] = [this.#days.value.trim(), this.#keep.value.trim()];
    this.#asked = { older: days ? `${days}d` : null, keep: keep ? Number(keep) : null };
    const found = await this.#ask({ ...this.#asked, dry_run: true });
    if (found) this.#show(found);
  }

  async #prune(): Promise<void> {
    const only = this.#shown.map(({ id }) => id);
    this.#empty(__('Deleting'));
    const done = await this.#ask({ ...this.#asked, only });
    if (!done) return;
    const failed = done.jobs.filter(({ problem }) => problem);
    const gone = done.jobs.filter(({ problem }) => !problem);
    setText(this.#total, _n('%2 job deleted, %3', '%2 jobs deleted, %3', gone.length, count(gone.length), bytes(sum(gone))));
    this.#say(failed.map(({ id, problem }) => `${shortId(id)}: ${problem}`).join(' '));
    this.#days.focus();
  }

  /** Return the answer to the newest question; null when it was refused, or when a newer one was sent. */
  async #ask(wanted: Prune): Promise<Pruned | null> {
    const question = (this.#question += 1);
    try {
      const answer = await this.actions.prune(wanted);
      return question === this.#question ? answer : null;
    } catch (error) {
      if (question === this.#question) {
        this.#empty('');
        this.#say(error);
      }
      return null;
    }
  }

  /** Show no jobs, only the status text. */
  #empty(text: string): void {
    this.#shown = [];
    this.#delete.disabled = true;
    setText(this.#delete, __('Delete'));
    show(this.#list, false);
    show(this.#kept, false);
    setText(this.#total, text);
    this.#say('');
  }

  #show({ jobs, kept }: Pruned): void {
    const now = Date.now() / 1000;
    this.#shown = jobs;
    this.#delete.disabled = jobs.length === 0;
    if (jobs.length) setText(this.#delete, _n('Delete %2 job', 'Delete %2 jobs', jobs.length, count(jobs.length)));
    const more = jobs.length > ROWS ? [h('li', { class: 'dd-sub' }, __('%1 more', count(jobs.length - ROWS)))] : [];
    this.#list.replaceChildren(...jobs.slice(0, ROWS).map((job) => row(job, now)), ...more);
    show(this.#list, jobs.length > 0);
    setText(this.#total, jobs.length ? _n('%2 job, %3', '%2 jobs, %3', jobs.length, count(jobs.length), bytes(sum(jobs))) : __('No jobs match.'));
    setText(this.#kept, kept.length ? __('Kept: %1', listing(kept.map(keptWords))) : '');
    show(this.#kept, kept.length > 0);
  }

  #say(what: unknown): void {
    say(this.#error, what);
  }
}

const sum = (jobs: readonly OldJob[]): number => jobs.reduce((all, { size }) => all + size, 0);

function field(value: number): HTMLInputElement {
  return h('input', { type: 'number', class: 'dd-input', id: fieldId(), min: 0, step: 1, value });
}

function row({ id, name, state, ended, size }: OldJob, now: number): HTMLElement {
  const mark = icon(state, 14, state === 'failed' ? 'dd-ink-err' : 'dd-sub');
  const [label, age] = [h('span', { class: 'dd-sr' }, stateWord(state)), h('span', { class: 'dd-sub dd-nw' }, ago(now - ended))];
  return h('li', { class: 'dd-row', title: `${name} ${id}, ${stateWord(state)}` }, mark, label, h('span', { class: 'dd-grow dd-ell' }, name), age, h('span', { class: 'dd-num dd-nw' }, bytes(size)));
}

/** Return how many jobs are kept for a reason. */
function keptWords({ reason, count: many }: KeptJobs): string {
  const words: Record<KeptJobs['reason'], (amount: string) => string> = {
    active: (amount) => __('%1 running or queued', amount),
    busy: (amount) => __('%1 in use', amount),
    'other-user': (amount) => __('%1 owned by another user', amount),
    'other-host': (amount) => __('%1 running on another host', amount),
    newest: (amount) => __('%1 among the newest', amount),
    younger: (amount) => __('%1 newer', amount),
  };
  return words[reason](count(many));
}
