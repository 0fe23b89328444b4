/** What a panel is told of a job: plain data made by `panels/card.py`. Times are epoch seconds of the kernel's clock. */
import type { State } from './words';

export interface Phase {
  phase: string;
  detail: string;
  begun: number | null;
  seconds: number | null;
}

/** One node: its ranks with their status, or only counts when the job is large. */
export interface Host {
  name: string;
  ranks: [number, RankStatus][];
  counts: Partial<Record<RankStatus, number>>;
}

export type RankStatus = 'waiting' | 'started' | 'ready' | 'ended' | 'failed';

export interface Stop {
  by: string;
  signal: string;
  sent: number;
  next: string;
  next_at: number | null;
  kill_at: number | null;
  /** How many ranks still run, and the first few of them by place. */
  remaining: number;
  places: string[];
}

export interface Frame {
  file: string;
  line: number;
  function: string;
  kind: string;
  label: string;
  cell: number | null;
  source: [number, string][];
}

export interface Failure {
  /** null when the job failed as a whole, not one of its ranks. */
  rank: number | null;
  when: number | null;
  what: string;
  error_type: string;
  message: string;
  place: string;
  hint: string;
  frames: Frame[];
  values: [string, string][];
  /** Number of the frame that the values belong to. */
  values_at: number | null;
  /** The exceptions behind this one, nearest first. */
  causes: { type: string; message: string; frames: Frame[] }[];
  traceback: string;
  others: { rank: number; what: string; after: number }[];
  story: { t: number; text: string; bad: boolean }[];
}

export interface Card {
  id: string;
  name: string;
  state: State;
  reason: string;
  compute_target: string;
  backend: string;
  node_count: number;
  process_count_per_node: number;
  created: number;
  ended: number | null;
  last_sign: number;
  /** The kernel's clock when this was made. */
  now: number;
  phases: Phase[];
  hosts: Host[];
  done: number | null;
  total: number | null;
  unit: string;
  left: number | null;
  step: number | null;
  stop: Stop | null;
  lines: number;
  failure: Failure | null;
  result: string;
  notice: { level: string; text: string } | null;
  has_metrics: boolean;
  can_rerun: boolean;
}

/** The kernel's clock as far as it is known here: it stands still when nothing was heard for a while. */
export class Clock {
  #kernel = 0;
  #heard = 0;
  /** Whether the kernel was heard at all; a view of a saved notebook never hears one. */
  live = false;

  /** `patience` are the seconds of silence after which the time stands still and the view counts as paused. */
  constructor(readonly patience = 5) {}

  /** Take the kernel's time from a message that came just now. */
  sync(kernel: number): void {
    this.#kernel = kernel;
    this.#heard = performance.now();
    this.live = true;
  }

  /** Start from a time that was told before the view was drawn: nobody may be there to tell another. */
  startAt(kernel: number): void {
    this.#kernel = kernel;
    this.#heard = performance.now();
  }

  /** Count this moment as a sign of life that brought no time along. */
  keep(): void {
    if (!this.live) return;
    this.#kernel += this.silence();
    this.#heard = performance.now();
  }

  /** Seconds since the kernel was heard. */
  silence(): number {
    return (performance.now() - this.#heard) / 1000;
  }

  /** The kernel's time now; after too long a silence it stays where it was heard last. */
  now(): number {
    const silence = this.silence();
    return this.#kernel + (silence > this.patience ? 0 : silence);
  }
}
