/** The number of running jobs in the status bar, and the jobs among what runs in JupyterLab. */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IRunningSessionManagers, type IRunningSessions } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { h, onClick, setText } from '../ui/dom';
import { icon } from '../ui/icons';
import { lineText, secondLine } from '../sidebar/jobtext';
import type { JobRow } from '../sidebar/types';
import { shortId, shownState } from '../ui/format';
import type { JobList } from './jobs';
import { NAME, SETTINGS } from './ids';
import { ILanguage } from './language';
import { IDistDL, type DistDL } from './live';
import { ISidebar } from './sidebar';
import { stateIcon } from './stateicons';
import { __, _n } from '../ui/trans';

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:status`,
  description: 'The status bar item and the section of the running panel.',
  autoStart: true,
  requires: [ILanguage, IDistDL, ISidebar],
  optional: [IStatusBar, IRunningSessionManagers, ISettingRegistry],
  activate: (
    app,
    _language: unknown,
    distdl: DistDL,
    { jobList }: ISidebar,
    bar: IStatusBar | null,
    running: IRunningSessionManagers | null,
    settings: ISettingRegistry | null,
  ) => {
    if (bar) addItem(app, jobList, bar, settings);
    running?.add(new RunningJobs(app, distdl, jobList));
  },
};

/** "2 jobs active", while there are any; a click shows them in the sidebar. */
class ActiveJobs extends Widget {
  readonly #text = h('span', {});

  constructor(app: JupyterFrontEnd, private readonly jobList: JobList) {
    super();
    const button = h('button', { type: 'button', class: 'dd-status-item', title: __('Show the jobs in the sidebar') }, icon('ranks', 14), this.#text);
    onClick(button, () => void app.commands.execute('distdl:focus-sidebar'));
    this.node.append(button);
    this.update();
    jobList.changed.connect(() => this.update());
  }

  protected override onUpdateRequest(): void {
    setText(this.#text, _n('%1 job active', '%1 jobs active', this.jobList.active.length));
  }
}

function addItem(app: JupyterFrontEnd, jobList: JobList, bar: IStatusBar, settings: ISettingRegistry | null): void {
  let wanted = true;
  const changed = new Signal<JobList, void>(jobList);
  jobList.changed.connect(() => changed.emit());
  bar.registerStatusItem(`${NAME}:active`, {
    item: new ActiveJobs(app, jobList),
    align: 'left',
    rank: 5,
    isActive: () => wanted && jobList.active.length > 0,
    activeStateChanged: changed,
  });
  void settings?.load(SETTINGS).then((loaded) => {
    const read = (): void => {
      wanted = loaded.get('statusBar').composite !== false;
      changed.emit();
    };
    loaded.changed.connect(read);
    read();
  });
}

/** The section of the running panel: shutting a job down means canceling it. */
class RunningJobs implements IRunningSessions.IManager {
  readonly name = __('Distributed training');
  readonly shutdownLabel = __('Cancel');
  readonly shutdownAllLabel = __('Cancel all');
  readonly runningChanged: Signal<RunningJobs, void> = new Signal<RunningJobs, void>(this);

  constructor(private readonly app: JupyterFrontEnd, private readonly distdl: DistDL, private readonly jobList: JobList) {
    jobList.changed.connect(() => this.runningChanged.emit());
  }

  readonly shutdownAllConfirmationText = (): string => _n('Cancel %1 job?', 'Cancel %1 jobs?', this.jobList.active.length);

  running(): IRunningSessions.IRunningItem[] {
    return this.jobList.active.map((row) => this.#item(row));
  }

  shutdownAll(): void {
    for (const { id } of this.jobList.active) void this.distdl.api.cancelJob(id);
  }

  refreshRunning(): void {
    this.distdl.live.tryNow();
  }

  #item(row: JobRow): IRunningSessions.IRunningItem {
    const now = Date.now() / 1000;
    return {
      icon: () => stateIcon(shownState(row.state, row.stalled)),
      label: () => `${row.name} ${shortId(row.id)}`,
      labelTitle: () => `${row.id}\n${lineText(secondLine(row, now, now, false))}`,
      detail: () => secondLine(row, now, now, false).strong,
      open: () => void this.app.commands.execute('distdl:open-job', { id: row.id }),
      shutdown: () => void this.app.commands.execute('distdl:cancel-job', { id: row.id }),
    };
  }
}

export default plugin;
