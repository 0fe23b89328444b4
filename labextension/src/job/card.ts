/** State of a job as a panel receives it: the types are those of the Python dataclasses. Times are epoch seconds of the kernel's clock. */
import type { components } from '../api/schema';

type Schemas = components['schemas'];
export type Card = Schemas['Card'];
export type Phase = Schemas['Phase'];
export type RankRow = Schemas['RankRow'];
export type Stop = Schemas['StopView'];
/** A data source that is copied to one node. */
export type StagingBar = Schemas['StagingView'];
export type Frame = Schemas['ErrorFrame'];
/** The first failure; `rank` is null when the job failed as a whole. */
export type Failure = Schemas['FailureCard'];

/** A picture that ranks have shown. */
export type Picture = Schemas['Picture'];

/** The stacks of all ranks at one moment, grouped by equal stacks. */
export type Stacks = Schemas['JobStacks'];
/** The last collective operation of ranks that are alike. */
export type Collective = Schemas['Collective'];
export type StackGroup = Schemas['StackGroup'];
export type StackFrame = Schemas['Frame'];
export type StackThread = Schemas['Thread'];

/** Estimate of the kernel's clock. It stops when no message arrives for a while. */
export class Clock {
  #kernel = 0;
  #receivedAt = 0;
  /** Whether any message was received; a view of a saved notebook never receives one. */
  live = false;

  /** `timeout` is the number of seconds without a message after which the clock stops and the view is paused. */
  constructor(readonly timeout = 5) {}

  /** Take the kernel's time from a message that came just now. */
  sync(kernel: number): void {
    this.#kernel = kernel;
    this.#receivedAt = performance.now();
    this.live = true;
  }

  /** Start from a time received before the view was drawn, because no other may follow. */
  startAt(kernel: number): void {
    this.#kernel = kernel;
    this.#receivedAt = performance.now();
  }

  /** Record a heartbeat without a time. */
  keep(): void {
    if (!this.live) return;
    this.#kernel += this.silence();
    this.#receivedAt = performance.now();
  }

  /** Seconds since the last message of the kernel. */
  silence(): number {
    return (performance.now() - this.#receivedAt) / 1000;
  }

  /** The kernel's time now; after a timeout it stays at the last message. */
  now(): number {
    const silence = this.silence();
    return this.#kernel + (silence > this.timeout ? 0 : silence);
  }
}
