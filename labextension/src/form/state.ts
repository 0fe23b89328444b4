/** What the launch form shows and sets: the types are those of `form/schema.py`, with what only a page knows. */
import type * as schema from '../api/schema';

export type { Advice, CachedStatus, FormCheck, FormRequest, NodeInfo, OptionField, VmSizeChoice } from '../api/schema';

/** What is answered has all its fields. */
export type DataRow = Required<schema.DataRow>;
export type Variable = Required<schema.Variable>;
export type Chosen = Required<Omit<schema.FormValues, 'data'>> & { data: DataRow[] };
export type FormState = Omit<schema.FormState, 'values' | 'environment'> & { values: Chosen; environment: Variable[] };

export type OptionValue = Chosen['backend_options'][string];

/** What became of Submit. */
export interface Status {
  level?: 'busy' | 'ok' | 'error';
  text?: string;
  name?: string;
  job?: string;
}

/** All that the form shows, under one name each. `answered` counts the answers. */
export type Fields = Chosen & Omit<FormState, 'values'> & { status: Status; answered: number };

export type Message =
  | { type: 'submit'; check?: boolean }
  | { type: 'refresh' }
  | { type: 'look' }
  | { type: 'apply'; code: string }
  | { type: 'environment'; entries: Pick<Variable, 'name' | 'value'>[] };

/** Where the form reads and writes. */
export interface Store {
  /** Whether the text can be checked instead of submitted. */
  readonly canCheck?: boolean;
  /** Whether it can run as the trials of a sweep. */
  readonly canSweep?: boolean;
  get<K extends keyof Fields>(name: K): Fields[K];
  set(changes: Partial<Chosen>): void;
  send(message: Message): void;
}

/** One part of the form: an element that is brought up to date after every change. */
export interface Part {
  readonly element: HTMLElement;
  update(): void;
}
