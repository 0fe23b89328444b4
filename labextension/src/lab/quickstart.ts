/** Puts the quickstart notebook, without its outputs, into the server's root folder and opens it. */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { Contents } from '@jupyterlab/services';

const PATH = 'quickstart.ipynb';

interface Cell {
  cell_type: string;
  outputs?: unknown[];
  execution_count?: number | null;
}

/** Open the quickstart; one that is there already is left as it is. */
export async function openQuickstart(app: JupyterFrontEnd): Promise<void> {
  const { contents } = app.serviceManager;
  if (!(await exists(contents))) await contents.save(PATH, { type: 'notebook', format: 'json', content: await fresh() });
  await app.commands.execute('docmanager:open', { path: PATH });
}

async function exists(contents: Contents.IManager): Promise<boolean> {
  try {
    await contents.get(PATH, { content: false });
    return true;
  } catch {
    return false;
  }
}

/** Return the notebook without outputs; it is loaded on demand. */
async function fresh(): Promise<unknown> {
  const { default: notebook } = await import('../../../notebooks/quickstart.ipynb');
  return { ...notebook, cells: notebook.cells.map(unrun) };
}

function unrun(cell: Cell): Cell {
  return cell.cell_type === 'code' ? { ...cell, outputs: [], execution_count: null } : cell;
}
