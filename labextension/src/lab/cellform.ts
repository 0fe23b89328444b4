/**
 * The launch form of a cell: it opens between the cell's code and its output, where the job will show itself.
 *
 * The cell's text is the source of truth: Submit writes the `%%distributed` line on top of it and runs the cell in its kernel,
 * so the same cell does the same everywhere.
 */
import { CodeCell, type Cell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { CommandRegistry } from '@lumino/commands';
import { PanelLayout, Widget } from '@lumino/widgets';
import { FormFrame } from '../form/frame';
import type { FormRequest, FormState, Status } from '../form/state';
import type { Text } from '../form/store';
import { Refusal } from '../ui/refusal';
import type { Api } from '../api/api';
import { clusterActions } from './clusteractions';
import { askKernel, askServer, keepSecrets } from './formsource';
import { __ } from '../ui/trans';

const SHOWN = ['application/vnd.distdl.job+json', 'application/vnd.distdl.sweep+json'];
/** Milliseconds after the last keystroke before the form is requested again. */
const TYPING = 700;

/** Return whether a job can be started from this cell. */
export const canRun = (cell: Cell | null | undefined): cell is CodeCell => cell instanceof CodeCell;

/** Open the form of a cell, or go to the one that is open. */
export function openForm(panel: NotebookPanel, cell: CodeCell, commands: CommandRegistry, api: Api): void {
  const layout = cell.layout as PanelLayout;
  const open = layout.widgets.find((widget): widget is CellForm => widget instanceof CellForm);
  if (open) {
    open.frame.focus();
    return;
  }
  const below = layout.widgets.findIndex((widget) => widget.hasClass('jp-Cell-inputWrapper'));
  layout.insertWidget(below + 1, new CellForm(panel, cell, commands, api));
}

class CellForm extends Widget implements Text {
  readonly frame: FormFrame;
  readonly canSweep = true;
  #magic: string;
  #typing: ReturnType<typeof setTimeout> | undefined;
  /** The kernel was busy at the last request. */
  #unanswered = false;
  /** The kernel became free while the first answer was awaited, so that there was no form yet to ask for. */
  #freed = false;
  #submitting = false;

  constructor(private readonly panel: NotebookPanel, private readonly cell: CodeCell, private readonly commands: CommandRegistry, api: Api) {
    super();
    this.addClass('dd-cell-form');
    this.#magic = magicLine(this.#code);
    this.frame = new FormFrame(this, { close: () => this.#close(), clusters: clusterActions(api) });
    this.node.append(this.frame.element);
    cell.model.contentChanged.connect(this.#onTyped, this);
    panel.sessionContext.statusChanged.connect(this.#onStatus, this);
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.frame.dispose();
    clearTimeout(this.#typing);
    if (!this.cell.isDisposed) this.cell.model.contentChanged.disconnect(this.#onTyped, this);
    if (!this.panel.isDisposed) this.panel.sessionContext.statusChanged.disconnect(this.#onStatus, this);
    super.dispose();
  }

  about(): FormRequest {
    const { model } = this.cell;
    return { code: this.#code, notebook: this.panel.context.localPath, cell_id: model.id, execution_count: model.executionCount, standalone: false };
  }

  async ask(request: FormRequest, wanted?: AbortSignal): Promise<FormState> {
    const { sessionContext } = this.panel;
    await sessionContext.ready;
    this.#freed = false;
    const kernel = sessionContext.session?.kernel;
    const found = kernel?.status === 'idle' ? await askKernel(kernel, request) : null;
    this.#unanswered = found === null;
    if (found) return found;
    const answer = await askServer(request, kernel?.name ?? sessionContext.kernelPreference.name ?? '', wanted);
    return this.#freed && !this.isDisposed ? this.ask(request, wanted) : answer;
  }

  async submit(form: FormState, secrets: Record<string, string>): Promise<Status> {
    const kernel = this.panel.sessionContext.session?.kernel;
    if (!kernel) throw new Refusal(__('This notebook has no kernel. Choose one and submit again.'));
    // Before anything else it loads the magics where the notebook has not done so.
    await keepSecrets(kernel, secrets);
    this.#submitting = true;
    try {
      this.#write(form.cell);
      return await this.#run(form.values.name);
    } finally {
      this.#submitting = false;
    }
  }

  get #code(): string {
    return this.cell.model.sharedModel.getSource();
  }

  #write(text: string): void {
    this.#magic = magicLine(text);
    if (this.#code !== text) this.cell.model.sharedModel.setSource(text);
  }

  /** Run the cell as its own button does. The form goes away as soon as the job shows itself. */
  async #run(name: string): Promise<Status> {
    const { content } = this.panel;
    const { outputs } = this.cell.model;
    const shown = (): void => {
      if (everyOutput(outputs).some(({ data }) => SHOWN.some((type) => type in data))) this.#close();
    };
    content.activeCellIndex = content.widgets.indexOf(this.cell);
    content.deselectAll();
    outputs.changed.connect(shown);
    try {
      await this.commands.execute('notebook:run-cell', { activate: false });
    } finally {
      if (!this.cell.isDisposed) outputs.changed.disconnect(shown);
    }
    const error = everyOutput(outputs).find(({ type }) => type === 'error');
    if (error && !this.isDisposed) throw new Refusal(error.text);
    this.#close();
    return { level: 'ok', name };
  }

  readonly #onTyped = (): void => {
    clearTimeout(this.#typing);
    if (this.#submitting) return;
    this.#typing = setTimeout(() => {
      const magic = magicLine(this.#code);
      const fresh = magic !== this.#magic;
      this.#magic = magic;
      void this.frame.store?.ask({ fresh });
    }, TYPING);
  };

  readonly #onStatus = (_: unknown, status: string): void => {
    if (status !== 'idle' || !this.#unanswered || this.#submitting) return;
    if (this.frame.store) void this.frame.store.ask();
    else this.#freed = true;
  };

  #close(): void {
    if (this.isDisposed) return;
    const focused = this.node.contains(document.activeElement);
    this.dispose();
    if (focused && !this.panel.isDisposed) this.panel.content.activate();
  }
}

/** Return the cell magic on top of a cell's text, "" without one. */
function magicLine(text: string): string {
  const first = text.trimStart().split('\n', 1)[0] ?? '';
  return first.startsWith('%%') ? first : '';
}

interface Shown {
  type: string;
  data: Record<string, unknown>;
  text: string;
}

function everyOutput(outputs: CodeCell['model']['outputs']): Shown[] {
  return Array.from({ length: outputs.length }, (_, at) => {
    const json = outputs.get(at).toJSON() as { output_type: string; data?: Record<string, unknown>; ename?: string; evalue?: string };
    return { type: json.output_type, data: json.data ?? {}, text: json.evalue ?? json.ename ?? '' };
  });
}
