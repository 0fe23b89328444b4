/** What travels with the job, what could be better, and the button that starts it. */
import { copy } from '../ui/clipboard';
import { fill, h, onClick, quoted, setText, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import { bytes, count, processes } from '../ui/format';
import { TRIALS } from './details';
import { heading, link } from './controls';
import type { Advice, Fields, FormCheck, Part, Store } from './state';

export class CapturedNames implements Part {
  readonly element: HTMLElement;
  readonly #summary = h('span', { class: 'dd-sub dd-s12 dd-num' });
  readonly #list = h('table', { class: 'dd-captured' });

  constructor(private readonly store: Store) {
    this.element = h('section', { class: 'dd-form-part' }, h('div', { class: 'dd-form-row' }, heading(__('Captured names')), this.#summary), this.#list);
  }

  update(): void {
    const captured = this.store.get('captured');
    const names = captured ?? [];
    const size = names.reduce((sum, name) => sum + name.size, 0);
    setText(this.#summary, captured ? summaryOf(names.length, bytes(size)) : __('available when the kernel is idle'));
    fill(this.#list, JSON.stringify(names), () => names.map(({ name, detail, size }) => h('tr', {},
      h('td', { class: 'dd-mono dd-ell', title: name }, name),
      h('td', { class: 'dd-sub dd-ell', title: detail }, detail),
      h('td', { class: 'dd-right dd-num dd-nw' }, bytes(size)))));
  }
}

function summaryOf(names: number, size: string): string {
  return names ? _n('%1 name, %2', '%1 names, %2', names, size) : __('nothing');
}

/** Advice is shown costliest first; more than these are folded. */
const FIRST = 3;

export class AdviceList implements Part {
  readonly element: HTMLElement;
  readonly #count = h('span', { class: 'dd-sub' });
  readonly #waiting = h('span', { class: 'dd-sub dd-s12', role: 'status' });
  readonly #list = h('div', {});
  #all = false;

  constructor(private readonly store: Store) {
    this.element = h('section', { class: 'dd-form-part dd-grow' },
      h('div', { class: 'dd-form-row' }, h('span', { class: 'dd-form-row dd-advice-head' }, heading(__('Advice')), this.#count), this.#waiting), this.#list);
  }

  /** Mark that the response to the last change is pending. */
  wait(text: string): void {
    setText(this.#waiting, text);
    this.#list.classList.toggle('dd-stale', Boolean(text));
  }

  update(): void {
    const all = this.store.get('advice');
    setText(this.#count, all.length ? String(all.length) : '');
    fill(this.#list, JSON.stringify([all, this.#all]), () => {
      if (!all.length) return [h('div', { class: 'dd-sub dd-s12' }, __('No suggestions.'))];
      const shown = this.#all ? all : all.slice(0, FIRST);
      const rest = all.length - shown.length;
      return [...shown.map((one) => this.#item(one)), rest > 0 && link(_n('Show %1 more', 'Show %1 more', rest), () => this.#showAll())];
    });
  }

  #showAll(): void {
    this.#all = true;
    this.update();
  }

  #item(advice: Advice): HTMLElement {
    const [name, ink] = advice.level === 'info' ? ['info', 'dd-ink-brand'] : ['warn', advice.level === 'error' ? 'dd-ink-err' : 'dd-ink-warn'];
    const title = advice.source ? __('Source: %1', advice.source) : null;
    return h('div', { class: 'dd-advice' },
      icon(name ?? 'info', 16, ink ?? ''),
      h('div', { class: 'dd-advice-text', title },
        h('div', { class: 'dd-b' }, ...quoted(advice.headline)),
        h('div', { class: 'dd-sub dd-s12' }, ...quoted(advice.reason)),
        advice.action ? this.#action(advice) : null));
  }

  #action(advice: Advice): HTMLElement {
    if (!advice.snippet) return link(advice.action, () => this.store.send({ type: 'apply', code: advice.code }), { class: 'dd-link dd-s12' });
    const button = h('button', { type: 'button', class: 'dd-link dd-s12 dd-copy-link' }, advice.action, icon('copy', 14));
    return onClick(button, () => void copy(advice.snippet, button));
  }
}

const MARKS: Record<FormCheck['level'], [string, string]> = {
  ok: ['check', 'dd-ink-ok'],
  info: ['info', 'dd-ink-brand'],
  warning: ['warn', 'dd-ink-warn'],
  error: ['warn', 'dd-ink-err'],
};

/** Return the icon of a check's level. */
export function checkMark(level: FormCheck['level']): SVGSVGElement {
  const [name, ink] = MARKS[level];
  return icon(name, 16, ink);
}

/** Return how many errors and warnings the checks found, or that all passed. */
export function checkSummary({ count, errors, warnings }: Fields['checks']): string {
  if (!errors && !warnings) return _n('%1 check passed', 'All %1 checks passed', count);
  return [errors && _n('%1 error', '%1 errors', errors), warnings && _n('%1 warning', '%1 warnings', warnings)].filter(Boolean).join(', ');
}

export class Submit implements Part {
  readonly element: HTMLElement;
  readonly #checks: HTMLButtonElement;
  readonly #button: HTMLButtonElement;
  readonly #check: HTMLButtonElement;
  readonly #total = h('span', { class: 'dd-b dd-num dd-nw' });
  readonly #where = h('span', { class: 'dd-sub dd-num dd-ell' });
  readonly #done = h('div', { class: 'dd-submit-status dd-s12', role: 'status' });
  readonly #refused = h('div', { class: 'dd-submit-status dd-s12 dd-ink-err', role: 'alert' });

  /** `showChecks` opens the list of checks. */
  constructor(private readonly store: Store, showChecks: () => void) {
    this.#checks = link('', showChecks, { class: 'dd-link dd-s12 dd-nw dd-submit-checks' });
    this.#button = onClick(h('button', { type: 'button', class: 'dd-btn dd-primary dd-submit', 'aria-keyshortcuts': 'Control+Enter' }, __('Submit')), () => this.press());
    const title = __('Check the code with short runs on several ranks and on one process');
    this.#check = onClick(h('button', { type: 'button', class: 'dd-btn', title }, __('Check')), () => this.store.send({ type: 'submit', check: true }));
    const keys = navigator.platform.startsWith('Mac') ? '⌘ Enter' : 'Ctrl Enter';
    this.element = h('section', { class: 'dd-form-part dd-submit-part' },
      h('div', { class: 'dd-row dd-submit-row' }, this.#button, h('kbd', { class: 'dd-kbd' }, keys), this.#check, this.#total, this.#where, this.#checks),
      this.#done, this.#refused);
  }

  /** Submit when that is possible. */
  press(): void {
    if (!this.#button.disabled) this.store.send({ type: 'submit' });
  }

  update(): void {
    const status = this.store.get('status');
    const checks = this.store.get('checks');
    this.#button.disabled = status.level === 'busy' || checks.level === 'error';
    this.#check.disabled = this.#button.disabled;
    this.#button.title = checks.level === 'error' ? checks.items.filter(({ level }) => level === 'error').map(({ text }) => text).join(' ') : '';
    fill(this.#checks, JSON.stringify([checks.level, checkSummary(checks)]), () => [checkMark(checks.level), checkSummary(checks)]);
    show(this.#checks, checks.errors > 0 || checks.warnings > 0);
    setText(this.#total, processes(this.store.get('node_count'), this.store.get('process_count_per_node')));
    const batch = this.store.get('global_batch');
    const target = this.store.get('compute_target');
    const trials = this.store.get('sweep').trim() ? this.store.get('trials') || TRIALS : 0;
    if (trials) setText(this.#where, _n('in %1 trial on %2', 'in each of %1 trials on %2', trials, target));
    else setText(this.#where, batch ? __('on %1, global batch %2', target, count(batch)) : __('on %1', target));
    show(this.#check, (this.store.canCheck ?? false) && !trials); // what is varied has no value for one job
    const refused = status.level === 'error' ? (status.text ?? '') : '';
    fill(this.#refused, refused, () => [refused]);
    show(this.#refused, refused !== '');
    this.#showDone();
  }

  #showDone(): void {
    const { level, name = '', job = '' } = this.store.get('status');
    show(this.#done, level === 'busy' || level === 'ok');
    fill(this.#done, JSON.stringify([level, name, job]), () => level === 'ok'
      ? [icon('check', 14, 'dd-ink-ok'), h('span', {}, __('Submitted %1', name), ' ', h('span', { class: 'dd-mono dd-sub' }, job))]
      : [level === 'busy' && __('Submitting')]);
  }
}
