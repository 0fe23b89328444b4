/** Check results of a cluster's nodes: one row per finding, with a remedy that can be copied. */
import { copy } from './clipboard';
import { h, onClick, quoted } from './dom';
import { icon } from './icons';
import { help } from './refusal';
import { __ } from './trans';
import type { NodeCheck } from '../api/schema';

const MARKS: Record<NodeCheck['level'], [string, string]> = {
  ok: ['check', 'dd-ink-ok'],
  info: ['info', 'dd-sub'],
  warning: ['warn', 'dd-ink-warn'],
  error: ['failed', 'dd-ink-err'],
};

/** A remedy that begins with words ends with the command; a sentence has none. */
const COMMAND = /(?:^|: )((?:ssh|ssh-\w+|sudo|pip|conda|python\d?|apt|apt-get|chmod|export|distdl|scontrol|module) .+?)\.?$/;

/** Return what of a remedy is typed into a terminal, "" when nothing is. */
export const commandOf = (remedy: string): string => COMMAND.exec(remedy)?.[1] ?? '';

/** Return a row of the list. */
export function checkItem({ node, what, level, message, remedy, code }: NodeCheck): HTMLElement {
  const [name, ink] = MARKS[level];
  const bad = level === 'error' || level === 'warning';
  const words = { ok: __('passed'), info: __('for information'), warning: __('warning'), error: __('error') };
  const mark = h('span', { class: 'dd-check-mark', role: 'img', 'aria-label': words[level] }, icon(name, 14, ink));
  const head = h('span', { class: 'dd-b' }, [node, what].filter(Boolean).join(' · '));
  return h('li', { class: 'dd-check-item', 'data-level': level }, mark, h('div', { class: 'dd-check-text' }, h('div', {}, head, ' ', h('span', { class: 'dd-sub' }, ...quoted(message)), ' ', bad && help(code)), remedy && remedyLine(remedy)));
}

function remedyLine(remedy: string): HTMLElement {
  const command = commandOf(remedy);
  const at = command ? remedy.lastIndexOf(command) : remedy.length;
  return copyable(remedy.slice(0, at), command);
}

/** Return words and the command that they lead to, "" for none, with a button that copies it. */
function copyable(words: string, command: string): HTMLElement {
  const button = h('button', { type: 'button', class: 'dd-btn dd-icon dd-quiet dd-check-copy', title: __('Copy'), 'aria-label': __('Copy') }, icon('copy', 14));
  onClick(button, () => void copy(command || words, button));
  return h('div', { class: 'dd-check-remedy' }, h('span', {}, ...quoted(words), command && h('code', {}, command)), button);
}
