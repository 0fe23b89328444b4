/** The launch form's state on a page: what was chosen stands here, all else is asked for after each change. */
import type { Chosen, Fields, Message, Store } from '../launchform/state';
import { Refusal, type Answer, type Question } from './formsource';

/** What the page that shows the form knows of the text, and does with it. */
export interface Text {
  /** Return what is asked about: the text as it is now. */
  about(): Pick<Question, 'code' | 'notebook' | 'cell_id' | 'execution_count' | 'own'>;
  /** Work the form out, as long as the answer is wanted. Raises Refusal. */
  ask(question: Question, wanted?: AbortSignal): Promise<Answer>;
  /** Start the job that the form shows; `secrets` are values that no answer holds. Returns the new status. Raises Refusal. */
  submit(form: Answer, secrets: Record<string, string>): Promise<Fields['status']>;
}

/** Clicks in quick succession are one question. */
const PAUSE = 120;

export class FormStore implements Store {
  #form: Answer;
  #secrets: Record<string, string> = {};
  #round = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #asking = new AbortController();
  #over = false;
  #submitting = false;

  constructor(private readonly text: Text, first: Answer, private readonly changed: () => void) {
    this.#form = { ...first, answered: 1 };
  }

  /** Return the form for the text alone, as it is when the answer comes. Raises Refusal. */
  static async begin(text: Text): Promise<Answer> {
    const asked = text.about();
    const answer = await text.ask({ ...asked, fields: null, environment: null, apply: '', again: false });
    return JSON.stringify(asked) === JSON.stringify(text.about()) ? answer : FormStore.begin(text);
  }

  get<K extends keyof Fields>(name: K): Fields[K] {
    return this.#form[name];
  }

  set(changes: Partial<Chosen>): void {
    this.#form = { ...this.#form, ...changes };
    // An answer that is under way knows nothing of this.
    this.#round += 1;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.ask(), PAUSE);
  }

  send(message: Message): void {
    if (message.type === 'submit') void this.#submit();
    else if (message.type === 'apply') void this.ask({ apply: message.code });
    else if (message.type === 'refresh') void this.ask({ again: true });
    else if (message.type === 'look') this.#look();
    else this.#setEnvironment(message.entries);
  }

  /** Ask once more unless a question is on its way. */
  #look(): void {
    if (this.#timer === undefined && !this.#over) void this.ask();
  }

  /** What the page has chosen, under the names of the options. */
  get chosen(): Chosen {
    return Object.fromEntries(this.#form.choices.chosen.map((name) => [name, this.#form[name]])) as unknown as Chosen;
  }

  /**
   * Ask again because the text or what it may use has changed; `fresh` begins with the text's own line. False when
   * somebody asked once more meanwhile, so that this answer was passed over.
   */
  async ask(more: { apply?: string; again?: boolean; fresh?: boolean } = {}): Promise<boolean> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const round = (this.#round += 1);
    this.#asking.abort();
    const asking = (this.#asking = new AbortController());
    const environment = this.#form.environment.map(({ name, value }) => ({ name, value }));
    const question: Question = {
      ...this.text.about(),
      fields: more.fresh ? null : this.chosen,
      environment: more.fresh ? null : environment,
      apply: more.apply ?? '',
      again: more.again ?? false,
    };
    try {
      const answer = await this.text.ask(question, asking.signal);
      if (round === this.#round && !this.#over) this.#take(answer);
    } catch (error) {
      if (round === this.#round && !this.#over) this.#refused(error);
    }
    return round === this.#round;
  }

  /** Answers that come later change nothing any more. */
  dispose(): void {
    this.#over = true;
    this.#asking.abort();
    clearTimeout(this.#timer);
  }

  #take(answer: Answer): void {
    const { status } = this.#form;
    this.#show({ ...answer, status: status.level === 'error' ? {} : status });
  }

  #show(changes: Partial<Answer>): void {
    this.#form = { ...this.#form, ...changes, answered: this.#form.answered + 1 };
    this.changed();
  }

  #refused(error: unknown): void {
    const text = error instanceof Error ? error.message : String(error);
    const field = error instanceof Refusal ? error.field : '';
    const problems = field ? { ...this.#form.problems, [field]: text } : this.#form.problems;
    this.#show({ status: { level: 'error', text }, problems });
  }

  #setEnvironment(entries: { name: string; value: string | null }[]): void {
    for (const { name, value } of entries) if (value !== null) this.#secrets[name] = value;
    this.#form = { ...this.#form, environment: entries.map(({ name, value }) => ({ name, value, secret: false })) };
    void this.ask();
  }

  /** The values of variables that the answer calls secret, as far as they were typed here. */
  #secretValues(): Record<string, string> {
    const secret = this.#form.environment.filter(({ secret }) => secret).map(({ name }) => name);
    return Object.fromEntries(secret.flatMap((name) => (name in this.#secrets ? [[name, this.#secrets[name]]] : []))) as Record<string, string>;
  }

  async #submit(): Promise<void> {
    if (this.#submitting || this.#form.status.level === 'busy') return;
    this.#submitting = true;
    try {
      await this.#submitShown();
    } finally {
      this.#submitting = false;
    }
  }

  /** What starts is what stands in the form: an answer to anything earlier is never taken for it. */
  async #submitShown(): Promise<void> {
    while (!(await this.ask())) if (this.#over) return;
    if (this.#over || this.#form.status.level === 'error' || this.#form.checks.level === 'error') return;
    this.#show({ status: { level: 'busy' } });
    try {
      this.#show({ status: await this.text.submit(this.#form, this.#secretValues()) });
    } catch (error) {
      this.#refused(error);
    }
  }
}
