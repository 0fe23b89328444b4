/**
 * What a check has found: a sentence about all of it, then each finding with the line to change, and what was compared.
 *
 * It asks until both runs have ended; other jobs show nothing here.
 */
import type { JobCheck } from '../api/schema';
import { copy } from '../ui/clipboard';
import { fill, h, onClick, quoted, show, type Child } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';

type Finding = JobCheck['findings'][number];

/** Poll interval in milliseconds while the runs are active. */
const PAUSE = 1500;
const MARKS: Record<Finding['level'], [string, string]> = { error: ['failed', 'dd-ink-err'], warning: ['warn', 'dd-ink-warn'], info: ['info', 'dd-sub'] };

export class CheckView {
  readonly #summary = h('div', { class: 'dd-row', role: 'status' });
  readonly #list = h('ul', { class: 'dd-check-list' });
  readonly #notes = h('div', { class: 'dd-sub dd-s12 dd-check-notes' });
  #timer: ReturnType<typeof setTimeout> | undefined;
  #over = false;

  constructor(readonly root: HTMLElement, private readonly ask: () => Promise<JobCheck>, private readonly open: (id: string) => void) {
    root.append(h('h3', { class: 'dd-h3' }, __('Check')), this.#summary, this.#list, this.#notes);
    show(root, false);
  }

  /** Start polling. */
  begin(): void {
    if (this.#timer === undefined && !this.#over) void this.#again();
  }

  dispose(): void {
    this.#over = true;
    clearTimeout(this.#timer);
  }

  async #again(): Promise<void> {
    const check = await this.ask().catch(() => null);
    if (this.#over) return;
    if (check) this.#take(check);
    if (!check || check.state === 'several' || check.state === 'one') this.#timer = setTimeout(() => void this.#again(), PAUSE);
    else this.#over = true;
  }

  #take(check: JobCheck): void {
    show(this.root, true);
    const { state, findings, notes, single } = check;
    const summary = state === 'several' ? __('Running the first steps on several ranks.') : state === 'one' ? __('Running the same steps in one process, with the samples of all ranks.') : check.summary;
    const wrong = findings.some(({ level }) => level !== 'info');
    const mark = state === 'done' ? (wrong ? icon('warn', 16, 'dd-ink-warn') : icon('check', 16, 'dd-ink-ok')) : state === 'failed' ? icon('failed', 16, 'dd-ink-err') : icon('starting', 16, 'dd-sub');
    const link = single ? onClick(h('button', { type: 'button', class: 'dd-link dd-s12 dd-nw' }, __('Run on one process')), () => this.open(single)) : null;
    fill(this.#summary, JSON.stringify([state, summary, wrong, single]), () => [mark, h('b', { class: 'dd-grow' }, ...quoted(summary)), link]);
    fill(this.#list, JSON.stringify(findings), () => findings.map(item));
    fill(this.#notes, JSON.stringify(notes), () => notes.map((note): Child => h('p', {}, ...quoted(note))));
  }
}

function item({ level, text, remedy, example, file, line }: Finding): HTMLElement {
  const [name, ink] = MARKS[level];
  const words = { info: __('for information'), warning: __('warning'), error: __('error') };
  const mark = h('span', { class: 'dd-check-mark', role: 'img', 'aria-label': words[level] }, icon(name, 14, ink));
  return h('li', { class: 'dd-check-item', 'data-level': level }, mark, h('div', { class: 'dd-check-text' }, h('div', {}, ...quoted(text)), file && h('div', { class: 'dd-mono dd-s12' }, `${file}:${line}`), remedy && h('div', { class: 'dd-sub' }, ...quoted(remedy)), example && code(example)));
}

function code(example: string): HTMLElement {
  const button = h('button', { type: 'button', class: 'dd-btn dd-icon dd-quiet dd-check-copy', title: __('Copy'), 'aria-label': __('Copy') }, icon('copy', 14));
  onClick(button, () => void copy(example, button));
  return h('div', { class: 'dd-row dd-check-example' }, h('pre', { class: 'dd-mono dd-s12 dd-grow' }, example), button);
}
