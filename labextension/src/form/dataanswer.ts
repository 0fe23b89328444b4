/** What is known of a place of data: how much lies there, or why it cannot be used and what to do. */
import { fill, h, quoted } from '../ui/dom';
import { icon } from '../ui/icons';
import { explained } from '../ui/refusal';
import { __ } from '../ui/trans';
import { link } from './controls';
import type { DataAnswer, DataRow } from './state';

const MARKS = { ok: ['check', 'dd-ink-ok'], info: ['info', 'dd-ink-brand'], warning: ['warn', 'dd-ink-warn'], error: ['warn', 'dd-ink-err'] } as const;

/** Say whether an answer is about what the row says now. */
export const isAbout = (said: DataAnswer, { name, place }: Pick<DataRow, 'name' | 'place'>): boolean => said.name === name && said.place === place;

export class Answer {
  readonly element = h('div', { class: 'dd-data-answer', role: 'status' });

  /** `look` requests a check of a location that was not checked yet. */
  constructor(private readonly look: () => void, private readonly signIn?: () => void) {}

  show(said: DataAnswer | undefined): void {
    this.element.hidden = !said || (!said.level && !said.looking && !said.place);
    fill(this.element, JSON.stringify(said ?? null), () => (said ? this.#parts(said) : []));
  }

  #parts({ level, text, remedy, code, looking, sign_in, place }: DataAnswer): (Node | false)[] {
    if (!level && !looking) return place ? [link(__('Check the location'), this.look)] : [];
    if (!level) return [h('span', { class: 'dd-sub' }, __('Checking the location'))];
    const [name, ink] = MARKS[level];
    const rest = level === 'ok' || (sign_in && this.signIn) ? '' : remedy;
    const words = level === 'error' ? explained(text, rest, code) : quoted([text, rest].filter(Boolean).join(' '));
    return [
      icon(name, 14, ink),
      h('span', { class: level === 'error' ? 'dd-ink-err' : level === 'warning' ? '' : 'dd-sub' }, ...words,
        ...(sign_in && this.signIn ? [' ', link(__('Sign in to Azure'), this.signIn)] : [])),
    ];
  }
}
