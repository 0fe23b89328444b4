/** The launch form's state on a page: the choices are kept here, everything else is requested after each change. */
import { Refusal, sentences } from '../ui/refusal';
import type { Chosen, Fields, FormRequest, FormState, Message, Status, Store, Variable } from './state';

/** What the page that shows the form knows of the text, and does with it. */
export interface Text {
  /** Return the current text and its context. */
  about(): FormRequest;
  /** Work the form out, as long as the answer is wanted. Raises Refusal. */
  ask(request: FormRequest, wanted?: AbortSignal): Promise<FormState>;
  /** Start the job that the form shows; `secrets` are values that no answer holds. Raises Refusal. */
  submit(form: FormState, secrets: Record<string, string>, check?: boolean): Promise<Status>;
  /** Whether `submit` can check the text instead. */
  readonly canCheck?: boolean;
  /** Whether it can run as the trials of a sweep. */
  readonly canSweep?: boolean;
}

/** Clicks in quick succession are one request. */
const PAUSE = 120;
const fieldsOf = ({ values, ...state }: FormState, status: Status, answered: number): Fields => ({ ...state, ...values, status, answered });

export class FormStore implements Store {
  /** The last answer; what is chosen now, and all that the form shows. */
  #answer: FormState;
  #values: Chosen;
  #form: Fields;
  #secrets: Record<string, string> = {};
  #round = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #asking = new AbortController();
  #over = false;
  #submitting = false;

  constructor(private readonly text: Text, first: FormState, private readonly changed: () => void) {
    this.#answer = first;
    this.#values = first.values;
    this.#form = fieldsOf(first, {}, 1);
  }

  /** Return the form for the text alone, as it is when the answer comes. Raises Refusal. */
  static async begin(text: Text): Promise<FormState> {
    const request = text.about();
    const answer = await text.ask(request);
    return JSON.stringify(request) === JSON.stringify(text.about()) ? answer : FormStore.begin(text);
  }

  get canCheck(): boolean {
    return this.text.canCheck ?? false;
  }

  get canSweep(): boolean {
    return this.text.canSweep ?? false;
  }

  get<K extends keyof Fields>(name: K): Fields[K] {
    return this.#form[name];
  }

  set(changes: Partial<Chosen>): void {
    this.#values = { ...this.#values, ...changes };
    this.#form = { ...this.#form, ...changes };
    // An answer that is under way knows nothing of this.
    this.#round += 1;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.ask(), PAUSE);
  }

  send(message: Message): void {
    if (message.type === 'submit') void this.#submit(message.check);
    else if (message.type === 'apply') void this.ask({ apply: message.code });
    else if (message.type === 'refresh') void this.ask({ refresh: true });
    else if (message.type === 'look') this.#lookNow();
    else this.#setEnvironment(message.entries);
  }

  /** Request the form again unless a request is pending. */
  #lookNow(): void {
    if (this.#timer === undefined && !this.#over) void this.ask();
  }

  /**
   * Request the form again because the text or its context has changed; `fresh` starts from the text's own line. Return
   * false if a newer request has superseded this one.
   */
  async ask(more: { apply?: string; refresh?: boolean; fresh?: boolean } = {}): Promise<boolean> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const round = (this.#round += 1);
    this.#asking.abort();
    const asking = (this.#asking = new AbortController());
    const { fresh = false, ...rest } = more;
    const known = fresh ? {} : { values: this.#values, environment: this.#form.environment.map(({ name, value }) => ({ name, value })) };
    try {
      const answer = await this.text.ask({ ...this.text.about(), ...known, ...rest }, asking.signal);
      if (round === this.#round && !this.#over) this.#take(answer);
    } catch (error) {
      if (round === this.#round && !this.#over) this.#refused(error);
    }
    return round === this.#round;
  }

  /** Ignore later responses. */
  dispose(): void {
    this.#over = true;
    this.#asking.abort();
    clearTimeout(this.#timer);
  }

  #take(answer: FormState): void {
    const { status, answered } = this.#form;
    this.#answer = answer;
    this.#values = answer.values;
    this.#form = fieldsOf(answer, status.level === 'error' ? {} : status, answered + 1);
    this.changed();
  }

  #show(changes: Partial<Fields>): void {
    this.#form = { ...this.#form, ...changes, answered: this.#form.answered + 1 };
    this.changed();
  }

  #refused(error: unknown): void {
    const text = sentences(error);
    const field = error instanceof Refusal ? error.field : '';
    const problems = field ? { ...this.#form.problems, [field]: text } : this.#form.problems;
    this.#show({ status: { level: 'error', text }, problems });
  }

  #setEnvironment(entries: Pick<Variable, 'name' | 'value'>[]): void {
    for (const { name, value } of entries) if (value !== null) this.#secrets[name] = value;
    this.#form = { ...this.#form, environment: entries.map(({ name, value }) => ({ name, value, secret: false })) };
    void this.ask();
  }

  /** The values of variables that the answer calls secret, as far as they were typed here. */
  #secretValues(): Record<string, string> {
    const secret = this.#form.environment.filter(({ secret }) => secret).map(({ name }) => name);
    return Object.fromEntries(secret.flatMap((name) => (name in this.#secrets ? [[name, this.#secrets[name]]] : []))) as Record<string, string>;
  }

  async #submit(check = false): Promise<void> {
    if (this.#submitting || this.#form.status.level === 'busy') return;
    this.#submitting = true;
    try {
      await this.#submitShown(check);
    } finally {
      this.#submitting = false;
    }
  }

  /** The form's current state is submitted; answers to older requests are ignored. */
  async #submitShown(check: boolean): Promise<void> {
    this.#show({ status: { level: 'busy' } });
    while (!(await this.ask())) if (this.#over) return;
    if (this.#over || this.#form.status.level === 'error') return;
    if (this.#form.checks.level === 'error') return this.#show({ status: {} });
    try {
      this.#show({ status: await this.text.submit(this.#answer, this.#secretValues(), check) });
    } catch (error) {
      this.#refused(error);
    }
  }
}
