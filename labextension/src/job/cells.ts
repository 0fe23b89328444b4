/** Finds the notebook's cell that a traceback speaks of. It reads the page only: a front end built otherwise finds none. */

/** Return the cell with the execution count `[number]` in the notebook around `element`, the nearest above first. */
export function findCell(element: Element, number: number | null): HTMLElement | null {
  const notebook = element.closest('.jp-Notebook');
  if (!notebook || number === null) return null;
  const cells = [...notebook.querySelectorAll<HTMLElement>('.jp-CodeCell')];
  const own = element.closest<HTMLElement>('.jp-CodeCell');
  const wanted = cells.filter((cell) => promptOf(cell) === `[${number}]:`);
  return wanted.find((cell) => cell === own) ?? wanted.at(-1) ?? null;
}

function promptOf(cell: HTMLElement): string {
  return cell.querySelector('.jp-InputPrompt')?.textContent?.trim() ?? '';
}

/** Bring a cell's line into view and mark it for a moment. */
export function openCell(cell: HTMLElement, line: number): void {
  const target = cell.querySelectorAll<HTMLElement>('.cm-line')[line - 1] ?? cell;
  const calm = matchMedia('(prefers-reduced-motion: reduce)').matches;
  target.scrollIntoView({ block: 'center', behavior: calm ? 'auto' : 'smooth' });
  target.classList.add('dd-found');
  setTimeout(() => target.classList.remove('dd-found'), 4000);
}
