/** What the launch form shows and sets: the traits of `form/model.py`, without any knowledge of widgets. */

export interface Size {
  name: string;
  series: string;
  /** The GPU's model as one word. */
  gpu: string;
  gpus: string;
  per_node: number;
  memory: string;
  /** Memory of each GPU in GiB; null where nobody states it. */
  memory_gib: number | null;
  network: string;
  rate: string;
  /** The day it was retired, "" when it can be rented. */
  retired: string;
  successor: string;
  successor_reason: string;
  /** Why the subscription cannot rent it in the region, '' when it can or nobody asked; its quota in words. */
  restriction: string;
  quota: string;
  /** What it costs in an hour with who says so, '' where nobody does. */
  price: string;
  /** What the filter looks at, in small letters. */
  words: string;
  sources: string[];
  /** Those of the sources that are Azure's own answers. */
  told: string[];
  notes: string;
}

export interface Option {
  name: string;
  help: string;
  choices: string[];
  default: string | number | boolean | null;
  kind: 'choice' | 'number' | 'flag' | 'text';
}

export interface Backend {
  label: string;
  backend: string;
  /** Why it cannot be used here, "" when it can. */
  reason: string;
  detail: string;
  options: Option[];
}

export interface Cluster {
  name: string;
  title: string;
  /** The system of this machine, "" for other clusters. */
  system: string;
  detail: string;
  reason: string;
  local: boolean;
  /** Its nodes are other machines: backends are looked for there, not here. */
  far: boolean;
  /** A user gave it its name and can remove it. */
  named: boolean;
  /** Its nodes are machines that are made and paid for: the VM series says which. */
  rents: boolean;
}

export interface PlaceNode {
  name: string;
  state: 'up' | 'down' | 'starting' | 'unknown';
  detail: string;
  gpus: number;
  gpu_name: string;
}

/** Other machines as they are now; {} for a cluster of this one. */
export interface PlaceNow {
  /** More may come: ask again. */
  looking?: boolean;
  /** Its nodes were heard of. */
  known?: boolean;
  problem?: string;
  remedy?: string;
  nodes?: PlaceNode[];
  /** The checks are done; `checks` are those with a remedy. */
  checked?: boolean;
  checks?: { node: string; what: string; level: 'error' | 'warning'; says: string; remedy: string }[];
}

/** A source of data as it was typed; `shard` and `mode` count for Blob only. */
export interface DataRow {
  name: string;
  place: string;
  /** Each node takes only its part of the files. */
  shard: boolean;
  mode: 'download' | 'mount';
}

/** What is known of the place of the row that has this name and place; `level` is '' while that is nothing. */
export interface DataAnswer {
  name: string;
  place: string;
  level: '' | Check['level'];
  text: string;
  remedy: string;
  looking: boolean;
  /** A sign-in to Azure is the remedy. */
  sign_in: boolean;
}

export interface DataNow {
  /** The cluster takes data that is read while training. */
  mounts: boolean;
  /** Why the cluster takes no data at all, '' when it does. */
  reason: string;
  /** More may come: ask again. */
  looking?: boolean;
  sources: DataAnswer[];
  outputs: DataAnswer;
}

/** What the nodes cost, {} where they cost nothing. */
export interface CostNow {
  bills?: boolean;
  /** More may come: ask again. */
  looking?: boolean;
  nodes?: number;
  /** Of all nodes together, with the currency. */
  per_hour?: string;
  source?: string;
  /** Why it is not known; `wrong` when that is what was typed. */
  problem?: string;
  wrong?: boolean;
}

export interface Choices {
  sizes: Size[];
  catalogue_date: string;
  backends: Backend[];
  clusters: Cluster[];
  durations: { seconds: number }[];
  most_restarts: number;
  /** The names of the traits that the page sets. */
  chosen: (keyof Chosen)[];
}

export type OptionValue = string | number | boolean | null;

/** The traits that the page sets. */
export interface Chosen {
  vm_size: string;
  node_count: number;
  process_count_per_node: number;
  automatic: boolean;
  distributed_backend: string;
  backend_options: Record<string, OptionValue>;
  compute_target: string;
  name: string;
  max_run_duration_seconds: number;
  /** Seconds without progress after which the job is ended, 0 for never. */
  hang_timeout_seconds: number;
  max_restarts: number;
  use_gpu: '' | 'yes' | 'no';
  data: DataRow[];
  /** Where outputs go besides, '' for nowhere. */
  outputs: string;
  /** What a node costs in an hour as the user says it, '' where nobody does. */
  price_per_hour: string;
}

export interface Variable {
  name: string;
  /** null: a secret that the kernel keeps to itself. */
  value: string | null;
  secret: boolean;
}

export interface Advice {
  code: string;
  level: 'error' | 'warning' | 'info';
  headline: string;
  reason: string;
  action: string;
  snippet: string;
  source: string;
}

export interface Check {
  name: string;
  level: 'ok' | 'info' | 'warning' | 'error';
  text: string;
  remedy: string;
  /** The option that it is about, "" for none. */
  field: string;
}

/** The traits that only the kernel sets. */
export interface Shown {
  choices: Choices;
  /** What runs: a function, or ""; and where it was written: a cell's number, or a file's name. */
  title: { function: string; cell: number | null; file: string };
  /** GPUs of a node that "one per GPU" means. */
  gpu_count: number;
  environment: Variable[];
  captured: { known: boolean; size: string; items: { name: string; detail: string; size: string }[] };
  checks: { level: Check['level']; passed: number; count: number; errors: number; warnings: number; items: Check[] };
  advice: Advice[];
  /** Samples that all processes take together for one step, 0 when that is not known. */
  global_batch: number;
  magic: string;
  cell: string;
  /** What is wrong, by the name of the field that it is shown beside; `cell` and `line` are about the text itself. */
  problems: Record<string, string>;
  status: { level?: 'busy' | 'ok' | 'error'; text?: string; name?: string; job?: string };
  place: PlaceNow;
  data_now: DataNow;
  cost: CostNow;
  answered: number;
}

export type Fields = Chosen & Shown;

export type Message =
  | { type: 'submit' }
  | { type: 'refresh' }
  | { type: 'look' }
  | { type: 'apply'; code: string }
  | { type: 'environment'; entries: { name: string; value: string | null }[] };

/** Where the form reads and writes: a widget's model in a notebook, or what a server or kernel answered to a page. */
export interface Store {
  get<K extends keyof Fields>(name: K): Fields[K];
  set(changes: Partial<Chosen>): void;
  send(message: Message): void;
}

/** One part of the form: an element that is brought up to date after every change. */
export interface Part {
  readonly element: HTMLElement;
  update(): void;
}
