/** Copies text to the clipboard and confirms it in the pressed button. */
import { icon } from './icons';

/** Copy `text`; the button shows a tick for a moment. */
export async function copy(text: string, button: HTMLElement): Promise<void> {
  if (!(await write(text))) return;
  const was = button.querySelector('svg');
  if (!was) return;
  const tick = icon('check', 16, 'dd-ink-ok');
  was.replaceWith(tick);
  setTimeout(() => tick.replaceWith(was), 1500);
}

async function write(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return writeOld(text);
  }
}

/** Fallback for pages without https, where the clipboard API is not available. */
function writeOld(text: string): boolean {
  const area = document.createElement('textarea');
  area.value = text;
  area.style.position = 'fixed';
  document.body.append(area);
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  return done;
}
