/** What the views of a scaling study and of a sweep have in common: they poll while it runs, and report its id. */
import { copy } from '../ui/clipboard';
import { h, onClick, type Child } from '../ui/dom';
import { stateWord, type State } from '../ui/format';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { button } from './header';

/** Poll interval in milliseconds while it runs. */
const PACE = 1500;

export interface StudyOptions<Study> {
  /** It was read. */
  changed?: (study: Study) => void;
  /** It could not be read for the first time. */
  gone?: (error: unknown) => void;
}

/** Polls a study while it runs and its element is visible. */
export class StudyReader<Study extends { state: State }> {
  #newest: Study | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #reading = false;
  #ended = false;

  /** `read` rejects when the study is not there, or nobody answers; `draw` is given the state before, null at first. */
  constructor(
    private readonly root: HTMLElement,
    private readonly read: () => Promise<Study>,
    private readonly draw: (study: Study, before: Study | null) => void,
    private readonly options: StudyOptions<Study>,
  ) {
    void this.#ask();
  }

  /** The newest state, null before the first. */
  get newest(): Study | null {
    return this.#newest;
  }

  /** Ask now: it is seen again, or something has changed. */
  refresh(): void {
    clearTimeout(this.#timer);
    void this.#ask();
  }

  dispose(): void {
    this.#ended = true;
    clearTimeout(this.#timer);
  }

  async #ask(): Promise<void> {
    if (this.#reading || this.#ended) return;
    this.#reading = true;
    try {
      const found = await this.read();
      if (!this.#ended) this.#take(found);
    } catch (error) {
      if (!this.#newest && !this.#ended) this.options.gone?.(error);
    }
    this.#reading = false;
    this.#next();
  }

  #next(): void {
    clearTimeout(this.#timer);
    if (this.#ended || (this.#newest && this.#newest.state !== 'running')) return;
    this.#timer = setTimeout(() => (this.root.isConnected && this.root.offsetParent ? void this.#ask() : this.#next()), PACE);
  }

  #take(study: Study): void {
    const before = this.#newest;
    this.#newest = study;
    this.draw(study, before);
    this.options.changed?.(study);
  }
}

/** State, title and id, which can be copied. */
export function identityOf({ id, state }: { id: string; state: State }, title: string): Child[] {
  const pill = h('span', { class: 'dd-pill', 'data-state': state }, icon(state, 14), stateWord(state));
  const copied = button('copy', __('Copy id'), 'dd-quiet dd-icon');
  onClick(copied, () => void copy(id, copied));
  return [pill, h('span', { class: 'dd-title dd-ell' }, title), h('span', { class: 'dd-mono dd-sub dd-nw dd-scaleid' }, id), copied];
}
