/** One cluster more with a name, or one less, below the list of clusters: both in their place, without a dialog. */
import { ClusterForm, type ClusterActions } from './clusterform';
import { h, setText, show } from '../ui/dom';
import { __ } from '../ui/trans';
import { InlineConfirm } from '../ui/inlineconfirm';
import { say } from '../ui/refusal';
import { freshId, link, setLine } from './controls';
import type { Part, Store } from './state';

/** What runs when the chosen cluster is gone: this machine is always there. */
const HERE = 'local';
/** After this many milliseconds without an answer it is said that nobody answers. */
const TIMEOUT = 3000;

export interface NamedClusterActions extends ClusterActions {
  /** The line that says that nobody answers yet. */
  readonly waiting: string;
}

export class NamedClusters implements Part {
  readonly element: HTMLElement;
  /** Where the form for a new cluster opens: it wants more room than the list. */
  readonly place = h('div', { id: freshId('named'), class: 'dd-named-place', hidden: true });
  readonly #add: HTMLButtonElement;
  readonly #remove: HTMLButtonElement;
  readonly #asking = h('div', {});
  readonly #waiting = h('div', { class: 'dd-form-note', role: 'status', hidden: true });
  readonly #refused = h('div', { class: 'dd-form-note dd-ink-err', role: 'alert', hidden: true });
  #question: { name: string; asked: InlineConfirm } | null = null;
  /** The cluster that is being removed, or whose removal was refused. */
  #about = '';

  /** `focus` puts the focus on the list of clusters. */
  constructor(private readonly store: Store, private readonly actions: NamedClusterActions, private readonly focus: () => void) {
    this.#add = link(__('Add cluster'), () => this.#pressAdd(), { 'aria-expanded': 'false', 'aria-controls': this.place.id });
    this.#remove = link('', () => void this.#pressRemove());
    const links = h('div', { class: 'dd-form-note dd-named-links' }, this.#add, this.#remove);
    this.element = h('div', { class: 'dd-named' }, links, this.#asking, this.#refused, this.#waiting);
  }

  update(): void {
    const name = this.store.get('compute_target');
    const named = this.store.get('choices').clusters.some((one) => one.name === name && one.named);
    setText(this.#remove, __('Remove %1', name));
    show(this.#remove, named);
    if (this.#question && this.#question.name !== name) this.#question.asked.close(false);
    if (this.#about !== name) this.#refuse('', '');
  }

  #pressAdd(): void {
    if (this.#add.getAttribute('aria-expanded') === 'true') this.#clear();
    else this.#openForm();
  }

  #openForm(): void {
    const { actions } = this;
    const form = new ClusterForm({
      kinds: () => this.#awaited(actions.kinds()),
      choices: (kind, option, options) => this.#awaited(actions.choices(kind, option, options)),
      add: (name, kind, options) => this.#awaited(actions.add(name, kind, options)),
      closed: (added) => this.#formDone(form, added),
    });
    this.place.replaceChildren(form.element);
    show(this.place, true);
    this.#add.setAttribute('aria-expanded', 'true');
    void form.open();
  }

  /** Take the form away; a new cluster is chosen, even when it is added after the form was closed. */
  #formDone({ element }: ClusterForm, added: string): void {
    const open = this.place.contains(element);
    if (open) this.#clear();
    if (added) this.store.set({ compute_target: added });
    if (open && added) this.focus();
    else if (open) this.#add.focus();
  }

  async #pressRemove(): Promise<void> {
    const name = this.store.get('compute_target');
    const asked = new InlineConfirm(__('Remove %1 from your clusters? Its machines and jobs are not changed.', name), __('Remove'), __('Keep'));
    this.#question = { name, asked };
    this.#refuse('', '');
    this.#asking.replaceChildren(asked.element);
    asked.focus();
    const yes = await asked.answered;
    if (yes) await this.#removed(name);
    else if (nowhere()) this.#remove.focus();
  }

  async #removed(name: string): Promise<void> {
    this.#about = name;
    this.#remove.disabled = true;
    try {
      await this.#awaited(this.actions.remove(name));
      if (this.store.get('compute_target') === name) this.store.set({ compute_target: HERE });
    } catch (error) {
      this.#refuse(name, error);
    } finally {
      this.#remove.disabled = false;
    }
    if (!nowhere()) return;
    if (this.#remove.hidden || !this.#refused.textContent) this.focus();
    else this.#remove.focus();
  }

  #clear(): void {
    this.place.replaceChildren();
    show(this.place, false);
    this.#add.setAttribute('aria-expanded', 'false');
  }

  #refuse(name: string, what: unknown): void {
    this.#about = name;
    say(this.#refused, what);
  }

  /** Say that nobody answers while that lasts. */
  async #awaited<T>(request: Promise<T>): Promise<T> {
    const timer = setTimeout(() => setLine(this.#waiting, this.actions.waiting), TIMEOUT);
    try {
      return await request;
    } finally {
      clearTimeout(timer);
      setLine(this.#waiting, '');
    }
  }
}

/** Say whether the focus was on something that is gone. */
const nowhere = (): boolean => document.activeElement === null || document.activeElement === document.body;
