/**
 * Renders cell outputs of the types `application/vnd.distdl.job+json` and `...sweep+json`, live from the server.
 *
 * * It wins over the HTML of the same output: a kernel may be gone, this server has the job.
 * * It is safe for notebooks that are not trusted: it takes nothing from the output but an id of the form of ids, and asks
 *   its own server for everything it shows.
 * * Where this server does not know the job, or does not answer, the other forms of the output are drawn, by the renderers
 *   that the notebook has for them and with the trust it has, below a line with the reason.
 *
 * The factory is registered by a plugin, not as a MIME extension, because it needs this page's `IDistDL`.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { Message } from '@lumino/messaging';
import { Panel, Widget } from '@lumino/widgets';
import { ApiError } from '../api/api';
import { h, onClick, setText } from '../ui/dom';
import { button } from '../job/header';
import { icon } from '../ui/icons';
import { JobView } from '../job/jobview';
import { SweepView } from '../job/sweep';
import { NAME } from './ids';
import { isJobId } from './jobid';
import { jobHost } from './jobhost';
import { OPEN_JOB } from './jobpage';
import { markView } from './onscreen';
import { ILanguage } from './language';
import { IDistDL, type DistDL } from './live';
import { OPEN_SWEEP } from './sweeppage';
import { sweepHost } from './sweephost';
import { __ } from '../ui/trans';

export const JOB = 'application/vnd.distdl.job+json';
const SWEEP = 'application/vnd.distdl.sweep+json';
const VERSION = 1;
/** Before JupyterLab's own renderers. */
const RANK = -20;
/** Milliseconds after which what the notebook kept is shown while the server is silent. */
const TIMEOUT = 3000;

/** Returns the renderers of the other forms: those of the notebook around an element. */
export type Renderers = (element: HTMLElement) => IRenderMimeRegistry;

/** What draws a thing of the server; `message` is null before it has answered. */
interface View {
  readonly message: unknown;
  refresh(): void;
  dispose(): void;
}

/** What an output of a type shows. */
interface Kind {
  mime: string;
  /** Draw the object with an id; report the first response, or that it does not exist. */
  make(live: Widget, id: string, answered: () => void, gone: () => void): View;
  /** Why the other forms are drawn: it is not there, or the server is silent. */
  gone: string;
  silent: string;
  /** Whether the view asks the server, so that an output that is written anew is a reason to ask. */
  asks: boolean;
}

export class ServedOutput extends Panel implements IRenderMime.IRenderer {
  #id: string | null = null;
  #view: View | null = null;
  #live: Widget | null = null;
  #kept: { line: HTMLElement; renderer: IRenderMime.IRenderer } | null = null;
  #model: IRenderMime.IMimeModel | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `kept` is called when the saved form is shown, because the server does not know the job or does not respond. */
  constructor(private readonly kind: Kind, private readonly renderers: Renderers, private readonly kept: () => void = () => undefined) {
    super();
    this.addClass('dd-output');
  }

  /** Show the job or sweep of an output. The same again changes nothing: the view is newer than any output. */
  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const id = idOf(model.data[this.kind.mime]);
    this.#model = model;
    if (id === null) this.#keep(__('This output was written by a newer version of distdl_jupyter.'));
    else if (id !== this.#id) this.#follow(id);
    else if (this.kind.asks) this.#view?.refresh();
    await this.#kept?.renderer.renderModel(rest(model, this.kind));
  }

  override dispose(): void {
    clearTimeout(this.#timer);
    this.#view?.dispose();
    super.dispose();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.#view?.refresh();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.#view?.refresh();
  }

  #follow(id: string): void {
    this.#view?.dispose();
    this.#live?.dispose();
    this.#id = id;
    markView(this.node, id);
    this.#live = new Widget();
    this.insertWidget(0, this.#live);
    this.#view = this.kind.make(this.#live, id, () => this.#answered(), () => this.#isGone());
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#unanswered(), TIMEOUT);
  }

  #answered(): void {
    clearTimeout(this.#timer);
    if (this.#live?.isHidden) this.#live.show();
    this.#drop();
  }

  #isGone(): void {
    clearTimeout(this.#timer);
    if (!this.#view?.message) this.#keep(this.kind.gone);
  }

  #unanswered(): void {
    if (!this.#view?.message) this.#keep(this.kind.silent);
  }

  /** Draw the other forms of the output below a line with the reason. */
  #keep(why: string): void {
    this.#live?.hide();
    if (this.#kept) {
      setText(this.#kept.line, why);
      return;
    }
    const model = this.#model;
    const registry = this.renderers(this.node);
    const type = model && bestForm(model);
    if (!model || !type || !registry.mimeTypes.includes(type)) return;
    const line = h('span', {}, why);
    const head = new Widget({ node: h('div', { class: 'dd dd-kept dd-row dd-s12', role: 'note' }, icon('info', 16), line) });
    const renderer = registry.createRenderer(type);
    this.#kept = { line, renderer };
    this.addWidget(head);
    this.addWidget(renderer);
    void renderer.renderModel(rest(model, this.kind));
    this.kept();
  }

  #drop(): void {
    if (!this.#kept) return;
    this.#kept = null;
    for (const child of [...this.widgets]) if (child !== this.#live) child.dispose();
  }
}

/** The id that an output names, null for one that this version does not know. */
function idOf(data: unknown): string | null {
  const { id, version } = (data ?? {}) as { id?: unknown; version?: unknown };
  return version === VERSION && isJobId(id) ? id : null;
}

/** Return the form that the notebook saved of the job. */
function bestForm(model: IRenderMime.IMimeModel): string | undefined {
  return ['text/html', 'text/plain'].find((type) => type in model.data);
}

/** The same output without the form that is drawn here. */
function rest(model: IRenderMime.IMimeModel, { mime }: Kind): IRenderMime.IMimeModel {
  const data = Object.fromEntries(Object.entries(model.data).filter(([type]) => type !== mime));
  return { trusted: model.trusted, data, metadata: model.metadata, setData: (options) => model.setData(options) };
}

/** Return how a job is shown. */
export function jobs({ commands }: JupyterFrontEnd, distdl: DistDL): Kind {
  const make: Kind['make'] = (live, id, changed, gone) => {
    const open = button('open', __('Open job page'), 'dd-quiet dd-tool');
    onClick(open, () => void commands.execute(OPEN_JOB, { id }));
    const host = jobHost(distdl, id, (fresh) => void commands.execute(OPEN_JOB, { id: fresh }));
    return new JobView(live.node, host, { detachable: true, extras: { first: [open] }, changed, gone });
  };
  return {
    mime: JOB,
    make,
    gone: __('This job is not on this server. This is the copy saved in the notebook.'),
    silent: __('The server is not responding for this job. This is the copy saved in the notebook.'),
    asks: false,
  };
}

function sweeps(app: JupyterFrontEnd, distdl: DistDL, notebooks: INotebookTracker | null): Kind {
  const make: Kind['make'] = (live, id, changed, gone) =>
    new SweepView(
      live.node,
      {
        ...sweepHost(app, distdl, id),
        open: () => void app.commands.execute(OPEN_SWEEP, { id }),
        insert: (code) => insertBelow(notebooks?.find((panel) => panel.node.contains(live.node)) ?? null, live.node, code),
      },
      { changed, gone: (error) => (error instanceof ApiError && error.status === 404 ? gone() : undefined) },
    );
  return {
    mime: SWEEP,
    make,
    gone: __('This sweep is not on this server. This is the copy saved in the notebook.'),
    silent: __('The server is not responding for this sweep. This is the copy saved in the notebook.'),
    asks: true,
  };
}

/** Put code into a new cell below the one that holds an element. */
function insertBelow(panel: NotebookPanel | null, element: HTMLElement, code: string): void {
  if (!panel) return;
  const { content } = panel;
  const at = content.widgets.findIndex((cell) => cell.node.contains(element));
  if (at >= 0) content.activeCellIndex = at;
  NotebookActions.insertBelow(content);
  content.activeCell?.model.sharedModel.setSource(code);
  void content.scrollToItem(content.activeCellIndex, 'smart');
}

/** Return the renderers of the notebook around an element, with the trust that it has, else those of the page. */
export const renderersAround = (registry: IRenderMimeRegistry, notebooks: INotebookTracker | null): Renderers =>
  (element) => notebooks?.find((panel) => panel.node.contains(element))?.content.rendermime ?? registry;

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:renderer`,
  description: 'Draws the outputs of jobs and sweeps in notebooks.',
  autoStart: true,
  requires: [ILanguage, IDistDL, IRenderMimeRegistry],
  optional: [INotebookTracker],
  activate: (app, _language, distdl: DistDL, registry: IRenderMimeRegistry, notebooks: INotebookTracker | null) => {
    const renderers = renderersAround(registry, notebooks);
    for (const kind of [jobs(app, distdl), sweeps(app, distdl, notebooks)]) {
      registry.addFactory({ safe: true, mimeTypes: [kind.mime], createRenderer: () => new ServedOutput(kind, renderers) }, RANK);
    }
  },
};

export default plugin;
