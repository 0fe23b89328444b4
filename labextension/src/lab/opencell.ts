/** Opens the notebook that a job came from, at the line of a cell. */
import { PathExt } from '@jupyterlab/coreutils';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { JobDetail } from '../job/detail';
import { openCell } from '../job/cells';
import { __ } from '../ui/trans';

/** Bring a line of the cell with an execution count into view; rejects with a sentence when the notebook is not found. */
export type OpenCell = (detail: JobDetail, cell: number | null, line: number) => Promise<void>;

/** Return an opener. Without a document manager or notebooks nothing can be opened. */
export function cellOpener(documents: IDocumentManager | null, notebooks: INotebookTracker | null): OpenCell {
  return async (detail, cell, line) => {
    const panel = await openNotebook(detail.source.notebook, documents, notebooks);
    if (!panel) throw new Error(__('%1 is outside the folder of this server, so it cannot be opened here.', detail.source.notebook));
    await panel.context.ready;
    await panel.revealed;
    const { content } = panel;
    const cells = content.widgets;
    const byCount = cells.findLastIndex((widget) => cell !== null && executionCount(widget.model) === cell);
    const byId = cells.findIndex((widget) => widget.model.id === detail.source.cell_id);
    const at = cell === detail.source.execution_count && byId >= 0 ? byId : byCount;
    const found = cells[at];
    if (!found) return;
    content.activeCellIndex = at;
    await content.scrollToItem(at, 'smart');
    await found.ready;
    openCell(found.node, line);
  };
}

function executionCount(model: { type: string }): number | null {
  return (model as { executionCount?: number | null }).executionCount ?? null;
}

/** The job knows the notebook's path on the machine, the page only paths below the server's root: their ends are the same. */
async function openNotebook(path: string, documents: IDocumentManager | null, notebooks: INotebookTracker | null): Promise<NotebookPanel | undefined> {
  const open = notebooks?.find((panel) => isEndOf(panel.context.path, path));
  const below = open?.context.path ?? (documents && (await findBelowRoot(path, documents)));
  return below ? (documents?.openOrReveal(below) as NotebookPanel | undefined) : undefined;
}

const isEndOf = (part: string, path: string): boolean => path === part || path.endsWith(`/${PathExt.removeSlash(part)}`);

async function findBelowRoot(path: string, documents: IDocumentManager): Promise<string | null> {
  const parts = path.split('/').filter(Boolean);
  for (let from = 0; from < parts.length; from += 1) {
    const candidate = parts.slice(from).join('/');
    const there = await documents.services.contents.get(candidate, { content: false }).then(() => true, () => false);
    if (there) return candidate;
  }
  return null;
}
