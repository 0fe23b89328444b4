/**
 * The launch form: where to run, how many, how they meet; what travels; what could be better; Submit; the same as magic.
 *
 * It reads and sets a `Store` and knows nothing of widgets. `update` brings every part up to date; it is cheap.
 */
import { copy } from '../ui/clipboard';
import { adopt, fill, h, onClick, quoted, setText } from '../ui/dom';
import { icon } from '../ui/icons';
import { explained } from '../ui/refusal';
import { __ } from '../ui/trans';
import { AdviceList, CapturedNames, Submit, checkMark, checkSummary } from './sidepanel';
import { Problem, freshId, link } from './controls';
import { Cost } from './cost';
import { Data } from './data';
import { Details, MoreOptions, SweepOptions } from './details';
import type { NamedClusterActions } from './namedclusters';
import { Packages } from './packages';
import { Place } from './place';
import { Sizing } from './sizing';
import type { FormCheck, Part, Store } from './state';
import { VmTable } from './vmtable';

/** Milliseconds without a response after which the advice is marked as stale. */
const TIMEOUT = 500;
/** Poll interval in milliseconds while other machines are checked. */
const LOOK = 1500;
/** The order in which checks are listed. */
const ORDER: readonly FormCheck['level'][] = ['error', 'warning', 'info', 'ok'];

/** What a place that shows the form adds to it. */
export interface FormPlace {
  /** Take the form away; it then has a button for it, and Escape. */
  close?: () => void;
  /** Gives clusters a name and takes it away. */
  clusters: NamedClusterActions;
  /** Message while no response has arrived; it names the kernel or the server. */
  waiting?: string;
}

export class Form {
  readonly element = h('section', { 'aria-label': __('Run distributed') });
  readonly #store: Store;
  readonly #parts: Part[];
  readonly #advice: AdviceList;
  #lastResponse = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #look: ReturnType<typeof setTimeout> | undefined;

  constructor(given: Store, private readonly place: FormPlace) {
    const store: Store = { canCheck: given.canCheck ?? false, canSweep: given.canSweep ?? false, get: (name) => given.get(name), set: (changes) => this.#set(changes), send: (message) => this.#send(message) };
    this.#store = given;
    const head = new Head(store, place.close);
    const submit = new Submit(store, () => head.reveal());
    this.#advice = new AdviceList(store);
    const left = [new VmTable(store), new Sizing(store), new Place(store, place.clusters), new Data(store), new Packages(store), new Details(store), new Cost(store), new SweepOptions(store), new MoreOptions(store)];
    const right = [new CapturedNames(store), this.#advice];
    const foot = new Foot(store);
    this.#parts = [head, ...left, ...right, submit, foot];
    adopt(this.element, 'dd-form');
    this.element.append(head.element,
      h('div', { class: 'dd-form-columns' }, h('div', { class: 'dd-form-main' }, ...left.map(({ element }) => element)), h('aside', { class: 'dd-form-aside' }, ...right.map(({ element }) => element))),
      h('div', { class: 'dd-form-end' }, submit.element, foot.element));
    this.element.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && !event.defaultPrevented) place.close?.();
      if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      (document.activeElement as HTMLElement | null)?.blur();
      submit.press();
    });
  }

  /** Bring every part up to date after something changed. */
  update(): void {
    for (const part of this.#parts) part.update();
    if (this.#store.get('answered') > this.#lastResponse) this.#answered();
    this.#lookAgain();
  }

  /** Poll while machines are checked and the form is on the page. */
  #lookAgain(): void {
    clearTimeout(this.#look);
    if (this.#store.get('cluster_status')?.pending) this.#look = setTimeout(() => this.element.isConnected && this.#store.send({ type: 'look' }), LOOK);
  }

  #set(changes: Parameters<Store['set']>[0]): void {
    const now = Object.keys(changes).map((name) => this.#store.get(name as keyof typeof changes));
    if (JSON.stringify(now) === JSON.stringify(Object.values(changes))) return;
    this.#ask();
    this.#store.set(changes);
    this.update();
  }

  #send(message: Parameters<Store['send']>[0]): void {
    this.#ask();
    this.#store.send(message);
  }

  #ask(): void {
    this.#lastResponse = this.#store.get('answered');
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#advice.wait(this.place.waiting ?? __('No response from the kernel yet')), TIMEOUT);
  }

  #answered(): void {
    clearTimeout(this.#timer);
    this.#advice.wait('');
  }
}

class Head implements Part {
  readonly element: HTMLElement;
  readonly #function = h('span', { class: 'dd-mono' });
  readonly #place = h('span', {});
  readonly #summary = h('span', { class: 'dd-row dd-s12 dd-nw', role: 'status' });
  readonly #details: HTMLButtonElement;
  readonly #list: HTMLElement;
  readonly #problem: Problem;
  /** Which checks the list shows. */
  #listed: 'findings' | 'all' | 'none' = 'findings';

  constructor(private readonly store: Store, close?: () => void) {
    const id = freshId('checks');
    this.#problem = new Problem(store, ['cell', 'line']);
    this.#list = h('div', { class: 'dd-checks', id, hidden: true });
    this.#details = link(__('Details'), () => this.#show(this.#listed === 'all' ? 'none' : 'all'), { class: 'dd-link dd-s12', 'aria-expanded': 'false', 'aria-controls': id });
    this.element = h('header', {},
      h('div', { class: 'dd-form-head' },
        h('h2', { class: 'dd-title dd-nw' }, __('Run distributed')),
        h('span', { class: 'dd-sub dd-ell dd-grow dd-form-function' }, this.#function, ' ', this.#place),
        this.#summary, this.#details, close && closeButton(close)),
      h('div', { class: 'dd-form-wrong' }, this.#problem.element),
      this.#list);
  }

  update(): void {
    const { function: name, cell, file } = this.store.get('title');
    setText(this.#function, name);
    setText(this.#place, cell === null ? (file && __('from %1', file)) : __('from cell [%1]', cell));
    this.#problem.update();
    const checks = this.store.get('checks');
    const summary = checkSummary(checks);
    const items = checks.items.filter(({ level }) => this.#listed === 'all' || level === 'error' || level === 'warning').sort((a, b) => ORDER.indexOf(a.level) - ORDER.indexOf(b.level));
    fill(this.#summary, JSON.stringify([checks.level, summary]), () => [checkMark(checks.level), h('span', {}, summary)]);
    this.#list.hidden = this.#listed === 'none' || !items.length;
    this.#details.setAttribute('aria-expanded', String(this.#listed === 'all'));
    fill(this.#list, JSON.stringify(items), () => [
      h('ul', {}, ...items.map(item)),
      link(__('Check again'), () => this.store.send({ type: 'refresh' }), { class: 'dd-link dd-s12' }),
    ]);
  }

  /** Show what the checks found and scroll to it. */
  reveal(): void {
    if (this.#listed === 'none') this.#show('findings');
    this.#list.scrollIntoView({ block: 'nearest' });
  }

  #show(listed: 'findings' | 'all' | 'none'): void {
    this.#listed = listed;
    this.update();
  }
}

/** Return the button that takes the form away. */
function closeButton(close: () => void): HTMLElement {
  const button = h('button', { type: 'button', class: 'dd-btn dd-quiet dd-icon', title: __('Close the form'), 'aria-label': __('Close the form') }, icon('close', 14));
  return onClick(button, close);
}

function item(check: FormCheck): HTMLElement {
  return h('li', {}, checkMark(check.level), h('span', {}, h('span', { class: check.level === 'ok' ? 'dd-sub' : 'dd-b' }, `${check.name}: `), ...(check.level === 'error' ? explained(check.text, check.remedy, check.code) : quoted([check.text, check.remedy].filter(Boolean).join(' ')))));
}

class Foot implements Part {
  readonly element: HTMLElement;
  readonly #magic = h('span', { class: 'dd-mono dd-ell dd-grow' });
  readonly #label = h('span', {});

  constructor(private readonly store: Store) {
    const button = h('button', { type: 'button', class: 'dd-btn dd-quiet dd-small', title: __('Copy a cell that does the same') }, icon('copy'), this.#label);
    onClick(button, () => void copy(store.get('cell'), button));
    this.element = h('footer', { class: 'dd-form-foot dd-s12' }, h('span', { class: 'dd-sub dd-nw' }, __('Same as')), this.#magic, button);
  }

  update(): void {
    const line = this.store.get('magic');
    setText(this.#magic, line);
    setText(this.#label, line.startsWith('%%') ? __('Copy as magic') : __('Copy as code'));
    this.#magic.title = this.store.get('cell');
  }
}
