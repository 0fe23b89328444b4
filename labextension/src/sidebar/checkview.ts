/** The checks of one cluster, below its nodes: what is wrong first, each with its remedy; what is well is folded. */
import { checkItem } from '../ui/checks';
import { h, onClick } from '../ui/dom';
import { icon } from '../ui/icons';
import { __, _n } from '../ui/trans';
import { explained } from '../ui/refusal';
import type { NodeCheck } from './types';

export class CheckView {
  readonly element: HTMLElement;
  readonly #body = h('div', { 'aria-live': 'polite' });
  readonly #rerun: HTMLButtonElement;

  constructor(name: string, private readonly ask: () => Promise<NodeCheck[]>, closed: () => void) {
    this.#rerun = button(__('Check again'), () => void this.run());
    const close = button(__('Close'), closed);
    this.element = h('section', { class: 'dd-cluster-checks', 'aria-label': __('Checks of %1', name) }, this.#body, h('div', { class: 'dd-row' }, this.#rerun, close));
    this.element.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') closed();
    });
  }

  focus(): void {
    (this.#rerun.disabled ? this.element.querySelector<HTMLElement>('button:enabled') : this.#rerun)?.focus();
  }

  /** Run the check again and show errors. */
  async run(): Promise<void> {
    this.#rerun.disabled = true;
    this.#body.replaceChildren(h('div', { class: 'dd-sub' }, __('Checking every node. This takes up to 30 seconds.')));
    try {
      this.#show(await this.ask());
    } catch (error) {
      this.#body.replaceChildren(h('div', { class: 'dd-ink-err', role: 'alert' }, ...explained(error)));
    } finally {
      this.#rerun.disabled = false;
    }
  }

  #show(checks: readonly NodeCheck[]): void {
    const wrong = [...checks.filter(({ level }) => level === 'error'), ...checks.filter(({ level }) => level === 'warning')];
    const well = checks.filter(({ level }) => level === 'ok' || level === 'info');
    this.#body.replaceChildren(headline(wrong), list(wrong), folded(well));
  }
}

function headline(wrong: NodeCheck[]): HTMLElement {
  const errors = wrong.filter(({ level }) => level === 'error').length;
  const warnings = wrong.length - errors;
  const counts = [errors && _n('%1 error', '%1 errors', errors), warnings && _n('%1 warning', '%1 warnings', warnings)].filter(Boolean).join(', ');
  return h('div', { class: errors ? 'dd-b dd-ink-err' : 'dd-b' }, counts || __('All checks passed'));
}

const list = (rows: NodeCheck[]): HTMLElement => h('ul', { class: 'dd-check-list', hidden: rows.length === 0 }, ...rows.map(checkItem));

function folded(well: NodeCheck[]): HTMLElement {
  const summary = h('summary', { class: 'dd-summary' }, icon('right', 12, 'dd-sub'), __('%1 passed', well.length));
  return h('details', { hidden: well.length === 0 }, summary, list(well));
}

function button(text: string, action: () => void): HTMLButtonElement {
  return onClick(h('button', { type: 'button', class: 'dd-btn dd-small' }, text), action);
}
