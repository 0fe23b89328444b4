/** Adds and removes named clusters below the list of clusters, inline, without a dialog. */
import { ClusterForm, type ClusterActions } from './clusterform';
import { h, setText, show } from '../ui/dom';
import { __ } from '../ui/trans';
import { InlineConfirm } from '../ui/inlineconfirm';
import { showMessage } from '../ui/refusal';
import { freshId, link, setLine } from './controls';
import type { Part, Store } from './state';

/** Fallback when the selected cluster is removed: the local machine always exists. */
const HERE = 'local';
/** Milliseconds without a response after which `waiting` is shown. */
const TIMEOUT = 3000;

export interface NamedClusterActions extends ClusterActions {
  /** Message shown while a response is pending. */
  readonly waiting: string;
}

export class NamedClusters implements Part {
  readonly element: HTMLElement;
  /** Container of the form for a new cluster, which is larger than the list. */
  readonly place = h('div', { id: freshId('named'), class: 'dd-named-place', hidden: true });
  readonly #add: HTMLButtonElement;
  readonly #remove: HTMLButtonElement;
  readonly #confirmation = h('div', {});
  readonly #waiting = h('div', { class: 'dd-form-note', role: 'status', hidden: true });
  readonly #error = h('div', { class: 'dd-form-note dd-ink-err', role: 'alert', hidden: true });
  #question: { name: string; asked: InlineConfirm } | null = null;
  /** The cluster that is being removed, or whose removal was refused. */
  #about = '';

  /** `focus` moves the focus to the list of clusters. */
  constructor(private readonly store: Store, private readonly actions: NamedClusterActions, private readonly focus: () => void) {
    this.#add = link(__('Add cluster'), () => this.#pressAdd(), { 'aria-expanded': 'false', 'aria-controls': this.place.id });
    this.#remove = link('', () => void this.#pressRemove());
    const links = h('div', { class: 'dd-form-note dd-named-links' }, this.#add, this.#remove);
    this.element = h('div', { class: 'dd-named' }, links, this.#confirmation, this.#error, this.#waiting);
  }

  update(): void {
    const name = this.store.get('compute_target');
    const named = this.store.get('choices').clusters.some((cluster) => cluster.name === name && cluster.named);
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
      kinds: () => this.#withTimeout(actions.kinds()),
      choices: (kind, option, options) => this.#withTimeout(actions.choices(kind, option, options)),
      add: (name, kind, options) => this.#withTimeout(actions.add(name, kind, options)),
      closed: (added) => this.#formDone(form, added),
    });
    this.place.replaceChildren(form.element);
    show(this.place, true);
    this.#add.setAttribute('aria-expanded', 'true');
    void form.open();
  }

  /** Close the form and select the new cluster, even if it was added after the form was closed. */
  #formDone({ element }: ClusterForm, added: string): void {
    const open = this.place.contains(element);
    if (open) this.#clear();
    if (added) this.store.set({ compute_target: added });
    if (open && added) this.focus();
    else if (open) this.#add.focus();
  }

  async #pressRemove(): Promise<void> {
    const name = this.store.get('compute_target');
    const confirm = new InlineConfirm(__('Remove %1 from your clusters? Its machines and jobs are not changed.', name), __('Remove'), __('Keep'));
    this.#question = { name, asked: confirm };
    this.#refuse('', '');
    this.#confirmation.replaceChildren(confirm.element);
    confirm.focus();
    const yes = await confirm.answered;
    if (yes) await this.#removeCluster(name);
    else if (focusLost()) this.#remove.focus();
  }

  async #removeCluster(name: string): Promise<void> {
    this.#about = name;
    this.#remove.disabled = true;
    try {
      await this.#withTimeout(this.actions.remove(name));
      if (this.store.get('compute_target') === name) this.store.set({ compute_target: HERE });
    } catch (error) {
      this.#refuse(name, error);
    } finally {
      this.#remove.disabled = false;
    }
    if (!focusLost()) return;
    if (this.#remove.hidden || !this.#error.textContent) this.focus();
    else this.#remove.focus();
  }

  #clear(): void {
    this.place.replaceChildren();
    show(this.place, false);
    this.#add.setAttribute('aria-expanded', 'false');
  }

  #refuse(name: string, what: unknown): void {
    this.#about = name;
    showMessage(this.#error, what);
  }

  /** Await a request; show `waiting` while it is overdue. */
  async #withTimeout<T>(request: Promise<T>): Promise<T> {
    const timer = setTimeout(() => setLine(this.#waiting, this.actions.waiting), TIMEOUT);
    try {
      return await request;
    } finally {
      clearTimeout(timer);
      setLine(this.#waiting, '');
    }
  }
}

/** Return whether the focused element was removed. */
const focusLost = (): boolean => document.activeElement === null || document.activeElement === document.body;
