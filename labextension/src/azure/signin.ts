/**
 * "Sign in to Azure": the account, the sign-in methods, the device code, the subscription.
 *
 * JupyterLab's sidebar and the kernel's panel show the same component; its actions are a parameter.
 */
import { fill, h, quoted, setText, type Child } from '../ui/dom';
import { unquoted } from '../ui/format';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { explained, showMessage } from '../ui/refusal';
import { Account } from './account';
import { Choices } from './choices';
import { Prompt } from './prompt';
import type { AzureSignIn, SignInActions } from './types';
import { whoIs } from './text';

/** Poll intervals in milliseconds, during a sign-in and otherwise. */
const WAITING = 1500;
const QUIET = 30_000;
/** Refresh when the user returns to the panel, because the sign-in may have changed elsewhere. */
const FRESH = 3000;
const TICK = 1000;

export class SignIn {
  readonly element: HTMLElement;
  readonly #head = h('div', { class: 'dd-azure-head dd-row' });
  readonly #body = h('div', { class: 'dd-azure-body' });
  readonly #lines = h('div', {});
  readonly #error = h('div', { class: 'dd-azure-line dd-s12', role: 'alert', hidden: true });
  readonly #live = h('div', { class: 'dd-sr', role: 'status', 'aria-live': 'polite' });
  #status: AzureSignIn | null = null;
  #choices: Choices | null = null;
  #prompt: Prompt | null = null;
  /** The signed-in user is switching to another method. */
  #other = false;
  #lastPoll = -Infinity;
  #busy = false;
  #timer: ReturnType<typeof setInterval> | undefined;

  /** `changed` is called with each response. */
  constructor(private readonly actions: SignInActions, private readonly changed: (status: AzureSignIn) => void = () => undefined) {
    setText(this.#head, __('Loading…'));
    this.element = h('div', { class: 'dd-azure' }, this.#head, this.#lines, this.#body, this.#error, this.#live);
    for (const event of ['pointerenter', 'focusin']) this.element.addEventListener(event, () => this.#lookAfter(FRESH));
  }

  /** Poll until `rest`. */
  wake(): void {
    if (this.#timer !== undefined) return;
    this.#timer = setInterval(() => this.#tick(), TICK);
    void this.look();
  }

  /** Stop polling. */
  rest(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  /** Poll once. */
  async look(): Promise<void> {
    this.#lastPoll = performance.now();
    await this.#do(this.actions.status(), false);
  }

  /** Put the focus where the next step is. */
  focus(): void {
    if (this.#prompt) this.#prompt.focus();
    else if (this.#choices) this.#choices.focus();
    else this.#body.querySelector<HTMLElement>('select, button')?.focus();
  }

  #tick(): void {
    const over = this.#prompt?.tick() ?? false;
    const pause = this.#status?.state === 'waiting' ? (over ? TICK : WAITING) : QUIET;
    if (this.element.offsetParent !== null && !document.hidden) this.#lookAfter(pause);
  }

  #lookAfter(pause: number): void {
    if (!this.#busy && this.#timer !== undefined && performance.now() - this.#lastPoll >= pause) void this.look();
  }

  /** Show what is answered; while a user's own request is on its way, nothing else may be pressed. */
  async #do(request: Promise<AzureSignIn>, own = true): Promise<void> {
    if (own) this.#lock(true);
    const inside = this.element.contains(document.activeElement);
    try {
      const status = await request;
      if (own) this.#other = false;
      this.#showMessage('');
      this.#show(status);
    } catch (error) {
      this.#showMessage(error);
    } finally {
      if (own) this.#lock(false);
    }
    if (own && inside && !this.element.contains(document.activeElement)) this.focus();
  }

  #lock(busy: boolean): void {
    this.#busy = busy;
    if (this.#choices) this.#choices.busy = busy;
    this.element.setAttribute('aria-busy', String(busy));
  }

  #show(status: AzureSignIn): void {
    const before = this.#status;
    this.#status = status;
    fill(this.#head, JSON.stringify([status.state, status.account]), () => head(status));
    fill(this.#lines, JSON.stringify([status.problem, status.note]), () => lines(status));
    this.#draw(status);
    if (before && whoIs(before) !== whoIs(status)) setText(this.#live, whoIs(status));
    if (status.problem && before?.problem?.message !== status.problem.message) setText(this.#live, unquoted([status.problem.message, status.problem.hint].join(' ')));
    this.changed(status);
  }

  #draw(status: AzureSignIn): void {
    const key = JSON.stringify([status.state, status.account, status.prompt?.user_code, status.settings, this.#other]);
    fill(this.#body, key, () => {
      this.#prompt = null;
      this.#choices = null;
      if (status.state === 'waiting') return [this.#waiting(status)];
      if (status.account && !this.#other) return [new Account(status, this.actions, { changed: (next) => void this.#do(next), other: () => this.#openOther(status) }).element];
      this.#choices = new Choices(status, (start) => void this.#do(this.actions.signIn(start)), status.account ? () => this.#closeOther(status) : null);
      return [this.#choices.element];
    });
  }

  #waiting(status: AzureSignIn): HTMLElement {
    this.#prompt = new Prompt(status, () => void this.#do(this.actions.cancel()));
    return this.#prompt.element;
  }

  #openOther(status: AzureSignIn): void {
    this.#other = true;
    this.#draw(status);
    this.focus();
  }

  #closeOther(status: AzureSignIn): void {
    this.#other = false;
    this.#draw(status);
    this.focus();
  }

  #showMessage(what: unknown): void {
    showMessage(this.#error, what);
  }
}

function head(status: AzureSignIn): Child[] {
  const { state } = status;
  const mark = state === 'signed_in' ? icon('completed', 16, 'dd-ink-ok') : state === 'failed' ? icon('warn', 16, 'dd-ink-err') : icon('cloud', 16, 'dd-sub');
  return [mark, h('span', { class: 'dd-b dd-ell' }, whoIs(status))];
}

function lines({ problem, note }: AzureSignIn): Child[] {
  const found: [string, string, Child[]][] = [];
  if (problem) found.push(['error', 'failed', explained(problem.message, problem.hint, problem.code)]);
  if (note) found.push(['info', 'info', quoted(note)]);
  return found.map(([level, name, words]) => h('div', { class: 'dd-azure-line dd-row dd-s12', 'data-level': level }, icon(name), h('span', { class: 'dd-grow' }, ...words)));
}
