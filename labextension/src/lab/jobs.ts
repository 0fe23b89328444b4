/** The jobs and studies of this server as the page knows them now: for the sidebar, the status bar and the running panel. */
import { Signal, type ISignal } from '@lumino/signaling';
import type { Watch } from '../job/jobview';
import { isActive } from '../sidebar/jobtext';
import { isStudy } from '../sidebar/study';
import type { JobRow } from '../sidebar/types';
import type { Live } from '../api/stream';

export class JobList {
  readonly #changed = new Signal<this, void>(this);
  readonly #watch: Watch;
  #rows: readonly JobRow[] = [];
  #studies: readonly JobRow[] = [];
  #byId = new Map<string, JobRow>();
  #answered = false;

  constructor(live: Live) {
    this.#watch = live.watchJobs((rows) => this.#take(rows));
  }

  /** Whether the server has sent its jobs. */
  get answered(): boolean {
    return this.#answered;
  }

  /** All jobs, newest first. */
  get rows(): readonly JobRow[] {
    return this.#rows;
  }

  /** A row for each study, the newest first. */
  get studies(): readonly JobRow[] {
    return this.#studies;
  }

  /** The jobs that have not ended, newest first. */
  get active(): readonly JobRow[] {
    return this.#rows.filter(isActive);
  }

  get changed(): ISignal<this, void> {
    return this.#changed;
  }

  get(id: string): JobRow | undefined {
    return this.#byId.get(id);
  }

  dispose(): void {
    this.#watch.dispose();
    Signal.clearData(this);
  }

  #take(rows: readonly JobRow[]): void {
    this.#rows = rows.filter((row) => !isStudy(row));
    this.#studies = rows.filter(isStudy);
    this.#byId = new Map(this.#rows.map((row) => [row.id, row]));
    this.#answered = true;
    this.#changed.emit();
  }
}
