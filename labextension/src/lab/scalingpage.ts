/** A scaling study as a document of the main area. */
import { Widget } from '@lumino/widgets';
import { ScalingView } from '../job/scaling';
import { h, setText, show } from '../ui/dom';
import { sentences } from '../ui/refusal';
import { __ } from '../ui/trans';
import type { DistDL } from './live';
import { compareIcon } from './stateicons';

export const OPEN_SCALING = 'distdl:open-scaling';

export class ScalingPage extends Widget {
  readonly #view: ScalingView;
  readonly #problem = h('div', { class: 'dd dd-notice', 'data-level': 'warning', role: 'alert', hidden: true });

  constructor(readonly studyId: string, { api }: DistDL) {
    super();
    this.id = `distdl-scaling-${studyId}`;
    this.addClass('dd-document');
    this.node.tabIndex = -1;
    this.title.closable = true;
    this.title.icon = compareIcon;
    this.title.label = __('Scaling');
    const body = h('div', {});
    this.node.append(this.#problem, body);
    this.#view = new ScalingView(body, { read: () => api.scaling(studyId) }, { changed: ({ name }) => this.#answered(name), gone: (error) => this.#say(sentences(error)) });
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

  #answered(name: string): void {
    this.title.label = __('Scaling of %1', name);
    this.#say('');
  }

  #say(text: string): void {
    setText(this.#problem, text);
    show(this.#problem, text !== '');
  }
}
