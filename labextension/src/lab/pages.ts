/** The pages of the main area: one for a job, one that compares several, one for a sweep. */
import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { WidgetTracker } from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { INotebookTracker } from '@jupyterlab/notebook';
import type { ReadonlyJSONObject, ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { SplitPanel, type Widget } from '@lumino/widgets';
import type { Choice } from '../job/picker';
import { ComparePage } from './comparepage';
import { JobPage, OPEN_JOB } from './jobpage';
import { NAME } from './ids';
import { isJobId } from './jobid';
import { ILanguage } from './language';
import { IDistDL, type DistDL } from './live';
import { OPEN_SWEEP, SweepPage } from './sweeppage';
import { cellOpener, type OpenCell } from './opencell';
import { __ } from '../ui/trans';

type Args = ReadonlyPartialJSONObject;

const COMPARE = 'distdl:compare';

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:pages`,
  description: 'The pages of the main area: a job, jobs compared, a sweep.',
  autoStart: true,
  requires: [ILanguage, IDistDL],
  optional: [ILayoutRestorer, IDocumentManager, INotebookTracker],
  activate: (app, _language, distdl: DistDL, restorer: ILayoutRestorer | null, documents: IDocumentManager | null, notebooks: INotebookTracker | null) => {
    jobPages(app, distdl, cellOpener(documents, notebooks), restorer);
    comparePages(app, distdl, restorer);
    sweepPages(app, distdl, restorer);
  },
};

function jobPages(app: JupyterFrontEnd, distdl: DistDL, openCell: OpenCell, restorer: ILayoutRestorer | null): void {
  const tracker = new WidgetTracker<JobPage>({ namespace: 'distdl-job' });
  const make = (args: Args, id: string): JobPage => {
    const page = new JobPage(id, app, distdl, openCell, {
      ...(typeof args['tab'] === 'string' ? { tab: args['tab'] } : {}),
      ...(isChoice(args['choice']) ? { choice: args['choice'] } : {}),
    });
    page.stateChanged.connect(() => void tracker.save(page));
    void tracker.add(page);
    return page;
  };
  app.commands.addCommand(OPEN_JOB, {
    label: __('Open Job Page'),
    describedBy: describe({ id: { type: 'string', description: __('The id of the job') }, stacks: { type: 'boolean', description: __('Show stack traces of all ranks') } }, ['id']),
    execute: (args) => {
      const id = args['id'];
      if (!isJobId(id)) return;
      const page = tracker.find((page) => page.jobId === id) ?? make(args, id);
      show(app, page);
      if (args['stacks'] === true) page.showStacks();
    },
  });
  void restorer?.restore(tracker, {
    command: OPEN_JOB,
    args: (page) => ({ ...page.args }) as unknown as Args,
    name: (page) => page.jobId,
  });
}

function comparePages(app: JupyterFrontEnd, distdl: DistDL, restorer: ILayoutRestorer | null): void {
  const tracker = new WidgetTracker<ComparePage>({ namespace: 'distdl-compare' });
  const make = (ids: string[], metric: string): ComparePage => {
    const page = new ComparePage(app, distdl, { ids, metric });
    page.stateChanged.connect(() => void tracker.save(page));
    void tracker.add(page);
    return page;
  };
  app.commands.addCommand(COMPARE, {
    label: __('Compare Jobs'),
    describedBy: describe({ ids: { type: 'array', items: { type: 'string' }, description: __('The ids of the jobs') } }, ['ids']),
    execute: (args) => {
      const ids = Array.isArray(args['ids']) ? [...new Set(args['ids'].filter(isJobId))] : [];
      const same = tracker.find(({ state }) => state.ids.length === ids.length && ids.every((id) => state.ids.includes(id)));
      if (ids.length) show(app, same ?? make(ids, typeof args['metric'] === 'string' ? args['metric'] : ''));
    },
  });
  void restorer?.restore(tracker, {
    command: COMPARE,
    args: (page) => ({ ...page.state }),
    name: (page) => page.id,
  });
}

function sweepPages(app: JupyterFrontEnd, distdl: DistDL, restorer: ILayoutRestorer | null): void {
  const tracker = new WidgetTracker<SweepPage>({ namespace: 'distdl-sweep' });
  const make = (id: string): SweepPage => {
    const page = new SweepPage(id, app, distdl);
    void tracker.add(page);
    return page;
  };
  app.commands.addCommand(OPEN_SWEEP, {
    label: __('Open Sweep'),
    describedBy: describe({ id: { type: 'string', description: __('The id of the study') } }, ['id']),
    execute: (args) => {
      const id = args['id'];
      if (isJobId(id)) show(app, tracker.find((page) => page.sweepId === id) ?? make(id));
    },
  });
  void restorer?.restore(tracker, { command: OPEN_SWEEP, args: (page) => ({ id: page.sweepId }), name: (page) => page.sweepId });
}

/** Notebook 7 has room for one document only: there a page is shown below the notebook. */
function show(app: JupyterFrontEnd, page: Widget): void {
  if (!page.isAttached) app.shell.add(page, 'main');
  if (!page.isAttached) showBelow(app, page);
  app.shell.activateById(page.id);
}

function showBelow(app: JupyterFrontEnd, page: Widget): void {
  app.shell.add(page, 'down');
  let around = page.parent;
  while (around && !(around instanceof SplitPanel)) around = around.parent;
  // The area is as high as its tabs until the user enlarges it.
  const split = around;
  if (split instanceof SplitPanel) requestAnimationFrame(() => split.setRelativeSizes([2, 3]));
}

const describe = (properties: ReadonlyJSONObject, required: string[]): { args: ReadonlyJSONObject } => ({ args: { type: 'object', properties, required } });

function isChoice(value: unknown): value is Choice & Args {
  const choice = value as Partial<Choice> | null | undefined;
  return typeof choice?.metric === 'string' && (choice.mode === 'band' || choice.mode === 'ranks') && typeof choice.log === 'boolean';
}

export default plugin;
