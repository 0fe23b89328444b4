/** A scaling study, or a sweep, as a document of the main area. */
import { Widget } from '@lumino/widgets';
import { h } from '../ui/dom';
import { say } from '../ui/refusal';
import { markView } from './onscreen';
import { compareIcon } from './stateicons';

export const OPEN_SCALING = 'distdl:open-scaling';
export const OPEN_SWEEP = 'distdl:open-sweep';

/** What draws a study and asks the server for it. */
interface View {
  refresh(): void;
  dispose(): void;
}

export interface StudyKind {
  /** Begins the page's id, and names the page before the study is known. */
  key: string;
  title: string;
  /** Draw the study with an id; `answered` is given the page's title, `gone` why it could not be read. */
  make(body: HTMLElement, id: string, answered: (title: string) => void, gone: (error: unknown) => void): View;
}

export class StudyPage extends Widget {
  readonly #view: View;
  readonly #problem = h('div', { class: 'dd dd-notice', 'data-level': 'warning', role: 'alert', hidden: true });

  constructor(readonly studyId: string, kind: StudyKind) {
    super();
    this.id = `distdl-${kind.key}-${studyId}`;
    this.addClass('dd-document');
    markView(this.node, studyId);
    this.node.tabIndex = -1;
    this.title.closable = true;
    this.title.icon = compareIcon;
    this.title.label = kind.title;
    const body = h('div', {});
    this.node.append(this.#problem, body);
    this.#view = kind.make(body, studyId, (title) => this.#answered(title), (error) => this.#say(error));
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
    this.#say('');
  }

  #say(what: unknown): void {
    say(this.#problem, what);
  }
}
