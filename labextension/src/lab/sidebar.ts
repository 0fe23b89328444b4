/** The left sidebar "Distributed training": clusters and jobs, search, actions. */
import { ILabShell, ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Token } from '@lumino/coreutils';
import { Widget } from '@lumino/widgets';
import { setCurveDefaults } from '../job/curvedefaults';
import type { Watch } from '../job/jobview';
import type { Actions, JobRow } from '../sidebar/types';
import { SidebarView } from '../sidebar/view';
import { JobList } from './jobs';
import { ranksIcon } from './icons';
import { NAME, SETTINGS } from './ids';
import { ILanguage } from './language';
import { IDistDL, type DistDL } from './live';
import { openQuickstart } from './quickstart';
import { __ } from '../ui/trans';

/** The jobs of the page and the sidebar that shows them. */
export interface ISidebar {
  readonly jobList: JobList;
  readonly view: SidebarView;
  /** Bring the sidebar to the front, with the focus in its list. */
  reveal(): void;
  /** The job last pointed at: in the list, or by its page in front. */
  readonly target: JobRow | null;
}

export const ISidebar = new Token<ISidebar>(`${NAME}:ISidebar`, 'The sidebar of distributed training and the jobs it shows.');

/** Milliseconds between two updates of the clock. */
const TICK = 1000;
const PAGE = 'distdl-job-';

const plugin: JupyterFrontEndPlugin<ISidebar> = {
  id: `${NAME}:sidebar`,
  description: 'The left sidebar with clusters and jobs.',
  autoStart: true,
  requires: [ILanguage, IDistDL],
  optional: [ILabShell, ILayoutRestorer, ISettingRegistry],
  provides: ISidebar,
  activate: (app, _language: unknown, distdl: DistDL, lab: ILabShell | null, restorer: ILayoutRestorer | null, settings: ISettingRegistry | null) => {
    const sidebar = new Sidebar(app, distdl);
    app.shell.add(sidebar, 'left', { rank: 210 });
    restorer?.add(sidebar, sidebar.id);
    keepFocus(app, sidebar);
    lab?.currentChanged.connect((_, { newValue }) => sidebar.front(newValue));
    void settings?.load(SETTINGS).then((loaded) => followSettings(sidebar, loaded));
    return sidebar;
  },
};

/** A menu that closes leaves the focus nowhere; one that was opened in the sidebar gives it back. */
function keepFocus(app: JupyterFrontEnd, sidebar: Sidebar): void {
  const { contextMenu } = app as Partial<JupyterFrontEnd>;
  let here = false;
  document.addEventListener('contextmenu', ({ target }) => (here = target instanceof Node && sidebar.node.contains(target)), true);
  contextMenu?.menu.aboutToClose.connect(() => {
    if (here) requestAnimationFrame(() => document.activeElement === document.body && sidebar.view.focus());
  });
}

function followSettings(sidebar: Sidebar, loaded: ISettingRegistry.ISettings): void {
  const read = (): void => {
    const confirm = loaded.get('confirmCancel').composite;
    sidebar.view.preferences = {
      confirmCancel: confirm === 'always' || confirm === 'never' ? confirm : 'minute',
      showClusters: loaded.get('showClusters').composite !== false,
    };
    setCurveDefaults(loaded.get('curveMode').composite === 'ranks' ? 'ranks' : 'band', loaded.get('curveLog').composite === true);
  };
  loaded.changed.connect(read);
  read();
}

class Sidebar extends Widget implements ISidebar {
  readonly jobList: JobList;
  readonly view: SidebarView;
  #target: string | null = null;
  #clusters: Watch | null = null;
  #timer: ReturnType<typeof setInterval> | undefined;

  constructor(private readonly app: JupyterFrontEnd, private readonly distdl: DistDL) {
    super();
    this.id = 'distdl-sidebar';
    this.title.icon = ranksIcon;
    this.title.caption = __('Distributed training');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', __('Distributed training'));
    this.jobList = new JobList(distdl.live);
    this.view = new SidebarView(this.node, actionsOf(app, distdl, () => this.view), () => this.#point());
    this.jobList.changed.connect(() => this.#draw());
    distdl.live.onState(() => this.#connection());
    this.#connection();
  }

  get target(): JobRow | null {
    return (this.#target === null ? undefined : this.jobList.get(this.#target)) ?? null;
  }

  reveal(): void {
    this.app.shell.activateById(this.id);
  }

  /** The widget in front changed: a job's page marks its row. */
  front(widget: Widget | null): void {
    const id = widget?.id.startsWith(PAGE) ? widget.id.slice(PAGE.length) : null;
    if (id !== null) this.#target = id;
    this.view.front(id);
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.#rest();
    this.jobList.dispose();
    super.dispose();
  }

  protected override onAfterShow(): void {
    this.#wake();
  }

  protected override onAfterAttach(): void {
    if (this.isVisible) this.#wake();
  }

  protected override onBeforeHide(): void {
    this.#rest();
  }

  protected override onActivateRequest(): void {
    if (!this.node.contains(document.activeElement)) this.view.focus();
  }

  #wake(): void {
    if (this.#clusters) return;
    this.#clusters = this.distdl.live.watchClusters((clusters) => this.view.clusters(clusters));
    this.#timer = setInterval(() => this.#connection(), TICK);
    this.#draw();
  }

  #rest(): void {
    this.#clusters?.dispose();
    this.#clusters = null;
    clearInterval(this.#timer);
  }

  #draw(): void {
    if (this.jobList.answered && this.isVisible) this.view.jobs(this.jobList.rows, this.jobList.studies);
  }

  #point(): void {
    this.#target = this.view.active?.id ?? this.#target;
  }

  #connection(): void {
    const { state, lastHeard, nextTry, problem } = this.distdl.live;
    const message = problem && problem.status > 0 ? [problem.message, problem.hint].filter(Boolean).join(' ') : '';
    this.view.connection({ state, heard: lastHeard, retry: nextTry, problem: message });
  }
}

/** Return what the sidebar can ask for, by commands where there is one. */
function actionsOf(app: JupyterFrontEnd, { api, live }: DistDL, view: () => SidebarView): Actions {
  const { commands } = app;
  const run = (command: string, args: Record<string, string | string[]> = {}): void => {
    if (commands.hasCommand(command)) void commands.execute(command, args);
  };
  return {
    open: ({ id }) => run('distdl:open-job', { id }),
    openSweep: (id) => run('distdl:open-sweep', { id }),
    stopSweep: (id) => api.stopSweep(id),
    removeSweep: (id) => api.removeSweep(id),
    cancel: ({ id }, now) => api.cancelJob(id, now),
    rerun: ({ id }) => api.rerunJob(id),
    remove: ({ id }) => api.removeJob(id),
    compare: (ids) => run('distdl:compare', { ids }),
    newJob: () => run('distdl:new-job'),
    quickstart: () => void openQuickstart(app),
    refresh: () => {
      live.tryNow();
      void api.clusters().then((clusters) => view().clusters(clusters), () => undefined);
    },
    settings: () => run('settingeditor:open', { query: __('Distributed training') }),
    kinds: () => api.clusterTypes(),
    addCluster: (name, kind, options) => api.addCluster(name, kind, options),
    choices: (kind, option, options) => api.choices(kind, option, options),
    removeCluster: (name) => api.removeCluster(name),
    checkCluster: (name) => api.checkCluster(name),
    refreshCluster: async (name) => view().cluster(await api.cluster(name)),
  };
}

export default plugin;
