/** A sweep as a document of the main area. */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Widget } from '@lumino/widgets';
import { SweepView } from '../job/sweep';
import { h } from '../ui/dom';
import { showMessage } from '../ui/refusal';
import { __ } from '../ui/trans';
import type { DistDL } from './live';
import { markView } from './onscreen';
import { compareIcon } from './stateicons';
import { sweepHost } from './sweephost';

export const OPEN_SWEEP = 'distdl:open-sweep';

export class SweepPage extends Widget {
  readonly #view: SweepView;
  readonly #problem = h('div', { class: 'dd dd-notice', 'data-level': 'warning', role: 'alert', hidden: true });

  constructor(readonly sweepId: string, app: JupyterFrontEnd, distdl: DistDL) {
    super();
    this.id = `distdl-sweep-${sweepId}`;
    this.addClass('dd-document');
    markView(this.node, sweepId);
    this.node.tabIndex = -1;
    this.title.closable = true;
    this.title.icon = compareIcon;
    this.title.label = __('Sweep');
    const body = h('div', {});
    this.node.append(this.#problem, body);
    this.#view = new SweepView(body, sweepHost(app, distdl, sweepId), { changed: ({ name }) => this.#answered(__('Sweep of %1', name)), gone: (error) => showMessage(this.#problem, error) });
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.#view.dispose();
    super.dispose();
  }

  protected override onAfterShow(): void {
    this.#view.refresh();
  }

  protected override onActivateRequest(): void {
    if (!this.node.contains(document.activeElement)) this.node.focus();
  }

  #answered(title: string): void {
    this.title.label = title;
    showMessage(this.#problem, '');
  }
}
