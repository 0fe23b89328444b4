/** The page "New job": text of its own, the kernel whose Python runs it, and the launch form. */
import { ILabShell, ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { CodeEditor, IEditorServices } from '@jupyterlab/codeeditor';
import type { KernelSpec } from '@jupyterlab/services';
import { Widget } from '@lumino/widgets';
import { adopt, h, onClick } from '../ui/dom';
import { icon } from '../ui/icons';
import { Select, TextField, freshId, heading, labelled, setLine } from '../form/controls';
import { FormFrame } from '../form/frame';
import type { FormRequest, FormState, Status } from '../form/state';
import type { Text } from '../form/store';
import type { Api } from '../api/api';
import { clusterActions } from './clusteractions';
import { askServer, submitText, sweepText } from './formsource';
import { ranksIcon } from './icons';
import { NAME } from './ids';
import { OPEN_JOB } from './jobpage';
import { ILanguage } from './language';
import { IDistDL, type DistDL } from './live';
import { OPEN_SWEEP } from './sweeppage';
import { __ } from '../ui/trans';

const NEW_JOB = 'distdl:new-job';
const NAMESPACE = 'distdl-new-job';
const TYPING = 700;
/** What a new page begins with: it runs as it is. */
const BEGINNING = `import torch
import torch.distributed as dist
from distdl_jupyter import log, progress

dist.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(200):
    x = torch.randn(32, 8)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log(step=step, loss=loss.item())
    progress(step + 1, 200)
dist.destroy_process_group()
`;

/** What a page keeps over a reload. */
interface Draft {
  code: string;
  kernel: string;
  path: string;
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:new-job`,
  description: 'The page that starts a job from text of its own.',
  autoStart: true,
  requires: [ILanguage, IEditorServices, IDistDL],
  optional: [ILabShell, ILayoutRestorer],
  activate: (app: JupyterFrontEnd, _language: unknown, editors: IEditorServices, distdl: DistDL, shell: ILabShell | null, restorer: ILayoutRestorer | null) => {
    // Pages need JupyterLab's main area.
    if (!shell) return;
    const tracker = new WidgetTracker<MainAreaWidget<NewJob>>({ namespace: NAMESPACE });
    app.commands.addCommand(NEW_JOB, {
      label: (args) => (args['isPalette'] ? __('New Distributed Job') : __('New job')),
      caption: __('Run code on many processes'),
      icon: ranksIcon,
      execute: async (args) => {
        await app.serviceManager.kernelspecs.ready;
        const page = new NewJob(app, editors, distdl.api, { code: BEGINNING, kernel: '', path: '', ...(args['draft'] as Partial<Draft> | undefined) });
        const widget = new MainAreaWidget({ content: page });
        widget.id = freshId('new-job');
        widget.title.label = __('New job');
        widget.title.icon = ranksIcon;
        widget.title.closable = true;
        widget.toolbar.hide();
        page.onChanged = () => void tracker.save(widget);
        void tracker.add(widget);
        shell.add(widget, 'main', { type: 'distdl' });
        shell.activateById(widget.id);
        return widget;
      },
      describedBy: { args: { type: 'object', properties: { draft: { type: 'object' } } } },
    });
    void restorer?.restore(tracker, { command: NEW_JOB, args: ({ content }) => ({ draft: { ...content.draft } }), name: ({ id }) => id });
  },
};

class NewJob extends Widget implements Text {
  readonly canCheck = true;
  readonly canSweep = true;
  /** Called when the draft has changed. */
  onChanged: () => void = () => undefined;
  readonly #model = new CodeEditor.Model({ mimeType: 'text/x-ipython' });
  readonly #editor: CodeEditor.IEditor;
  readonly #frame: FormFrame;
  readonly #kernels: Select;
  readonly #path: TextField;
  readonly #problem = h('div', { class: 'dd-form-note dd-ink-err', role: 'alert', hidden: true });
  #kernel: string;
  /** The script that the text is from, "" for none: its folder is where the job works. */
  #source: string;
  #typing: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly app: JupyterFrontEnd, editors: IEditorServices, api: Api, draft: Draft) {
    super();
    this.addClass('dd-newjob');
    const specs = pythons(app.serviceManager.kernelspecs.specs);
    this.#kernel = specs.some(({ name }) => name === draft.kernel) ? draft.kernel : (specs[0]?.name ?? '');
    const [kernel, script, code] = [freshId('kernel'), freshId('script'), freshId('code')];
    this.#kernels = new Select(kernel, (name) => this.#choose(name));
    this.#kernels.offer(specs.map(({ name, title }) => ({ value: name, text: title, reason: '' })));
    this.#kernels.show(this.#kernel);
    this.#path = new TextField({ 'aria-labelledby': script, placeholder: 'train.py' }, () => undefined, icon('file', 14, 'dd-sub'));
    this.#source = draft.path;
    this.#path.show(draft.path);
    const host = h('div', { class: 'dd-newjob-editor', 'aria-labelledby': code });
    this.node.append(h('div', { class: 'dd-newjob-inner' }, this.#codePart(host, kernel, script, code)));
    this.#model.sharedModel.setSource(draft.code);
    this.#editor = editors.factoryService.newDocumentEditor({ host, model: this.#model, config: { lineNumbers: true } });
    this.#frame = new FormFrame(this, { waiting: __('No response from the server yet'), clusters: clusterActions(api) });
    this.node.firstElementChild?.append(this.#frame.element);
    this.#model.sharedModel.changed.connect(this.#onTyped);
  }

  /** What the page keeps over a reload. */
  get draft(): Draft {
    return { code: this.#code, kernel: this.#kernel, path: this.#source };
  }

  override dispose(): void {
    if (this.isDisposed) return;
    clearTimeout(this.#typing);
    this.#frame.dispose();
    this.#editor.dispose();
    this.#model.dispose();
    super.dispose();
  }

  about(): FormRequest {
    return { code: this.#code, notebook: this.#source, cell_id: '', execution_count: null, standalone: true };
  }

  ask(request: FormRequest, wanted?: AbortSignal): Promise<FormState> {
    return askServer(request, this.#kernel, wanted);
  }

  async submit(form: FormState, secrets: Record<string, string>, check = false): Promise<Status> {
    const variables = { ...(form.options['environment_variables'] as Record<string, string> | undefined), ...secrets };
    const options = { ...form.options, environment_variables: variables };
    const { sweep: parameters, trials, metric, parallel } = form.values;
    const plan = { ...(trials && { trials }), ...(metric && { metric }), ...(parallel && { parallel }) };
    const { id, name } = parameters ? await sweepText(form.code, this.#source, this.#kernel, { ...options, ...plan }, parameters) : await submitText(form.code, this.#source, this.#kernel, options, check);
    const page = parameters ? OPEN_SWEEP : OPEN_JOB;
    if (this.app.commands.hasCommand(page)) void this.app.commands.execute(page, { id });
    return { level: 'ok', name, job: id };
  }

  get #code(): string {
    return this.#model.sharedModel.getSource();
  }

  #codePart(host: HTMLElement, kernel: string, script: string, code: string): HTMLElement {
    const open = onClick(h('button', { type: 'button', class: 'dd-btn dd-small' }, __('Open')), () => void this.#open());
    this.#path.input.addEventListener('keydown', (event) => event.key === 'Enter' && void this.#open());
    const head = h('div', { class: 'dd-newjob-head' },
      heading(__('Code'), code), h('span', { class: 'dd-grow' }),
      labelled(__('Kernel'), kernel, this.#kernels.element),
      labelled(__('Script'), script, h('div', { class: 'dd-row' }, this.#path.element, open)));
    adopt(head);
    const part = h('section', { class: 'dd dd-newjob-code' }, head, h('div', { class: 'dd-form-wrong' }, this.#problem), host);
    return part;
  }

  /** Put the text of a script into the editor. */
  async #open(): Promise<void> {
    const path = this.#path.input.value.trim();
    if (!path) return;
    try {
      const file = await this.app.serviceManager.contents.get(path, { type: 'file', format: 'text', content: true });
      this.#model.sharedModel.setSource(String(file.content));
      setLine(this.#problem, '');
      this.#rename(path);
    } catch {
      setLine(this.#problem, __('%1 cannot be opened as text. Enter a path inside the folder of this server.', path));
    }
  }

  /** Use another script; the default name follows it. */
  #rename(path: string): void {
    const store = this.#frame.store;
    const mine = store?.get('name') !== nameOf(this.#source);
    this.#source = path;
    this.onChanged();
    if (mine) void store?.ask();
    else store?.set({ name: nameOf(path) });
  }

  #choose(name: string): void {
    this.#kernel = name;
    this.#kernels.show(name);
    this.onChanged();
    void this.#frame.store?.ask();
  }

  readonly #onTyped = (): void => {
    clearTimeout(this.#typing);
    this.#typing = setTimeout(() => {
      this.onChanged();
      void this.#frame.store?.ask();
    }, TYPING);
  };
}

/** Return the name that the form gives a job from a script: "train". */
const nameOf = (path: string): string => path.split('/').pop()?.replace(/\.[^.]*$/, '') || 'job';

/** Return the kernels that are Python, the default first. */
function pythons(specs: KernelSpec.ISpecModels | null): { name: string; title: string }[] {
  const all = Object.values(specs?.kernelspecs ?? {}).flatMap((spec) => (spec?.language.toLowerCase() === 'python' ? [spec] : []));
  const first = (name: string): number => (name === specs?.default ? 0 : 1);
  return all.sort((a, b) => first(a.name) - first(b.name)).map(({ name, display_name }) => ({ name, title: display_name }));
}

export default plugin;
