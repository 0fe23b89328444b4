/** Toasts, and notifications of the browser while the page is hidden: ended jobs and studies, stalled jobs, and the messages of their rules. */
import { Notification as Toast } from '@jupyterlab/apputils';
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { isStudy, metricOf, titleOf } from '../sidebar/study';
import type { JobRow } from '../sidebar/types';
import { ENDED, number, shortId, stateWord, unquoted } from '../ui/format';
import { __, _n } from '../ui/trans';
import { NAME, SETTINGS } from './ids';
import { OPEN_JOB } from './jobpage';
import type { JobList } from './jobs';
import { isOnScreen } from './onscreen';
import { ILanguage } from './language';
import { ISidebar } from './sidebar';
import { OPEN_SWEEP } from './sweeppage';

/** Which notifications a user wants: all, only problems, none. */
type Wanted = 'all' | 'problems' | 'none';
type Kind = 'success' | 'error' | 'warning' | 'info';

interface News {
  kind: Kind;
  text: string;
  /** It holds only while the job is stalled. */
  whileStalled?: boolean;
}

/** A notification in the bell, with the text for each of its jobs. */
interface Notice {
  id: string;
  items: Map<JobRow, News>;
}

/** Milliseconds for which a toast is on the screen; the bell keeps it afterwards. */
const SHOWN = 8000;
/** Milliseconds in which news of several jobs become one toast. */
const TOGETHER = 1000;
/** The most jobs that a toast names. */
const MOST_NAMED = 4;
const GRAVITY: readonly Kind[] = ['success', 'info', 'warning', 'error'];

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:notifications`,
  description: 'Notifications about jobs that end, fail, stall or fulfil a rule.',
  autoStart: true,
  requires: [ILanguage, ISidebar],
  optional: [ISettingRegistry],
  activate: (app: JupyterFrontEnd, _language: unknown, { jobList }: ISidebar, settings: ISettingRegistry | null) => {
    const announcer = new Announcer(app, jobList);
    void settings?.load(SETTINGS).then((loaded) => {
      const follow = (): void => {
        announcer.wanted = loaded.get('notifications').composite as Wanted;
      };
      follow();
      loaded.changed.connect(follow);
    });
  },
};

/** Compares each row of the job list with the row before. What happened before the page was opened is not announced. */
class Announcer {
  wanted: Wanted = 'all';
  readonly #before = new Map<string, JobRow>();
  readonly #notices = new Set<Notice>();
  #pending = new Map<JobRow, News>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** The newest id when the page was opened. */
  #newest: string | undefined;

  constructor(private readonly app: JupyterFrontEnd, jobList: JobList) {
    jobList.changed.connect(({ rows, studies }) => this.#update([...studies, ...rows.filter(({ group }) => !group)])); // the study is announced, not its runs
  }

  #update(rows: readonly JobRow[]): void {
    // Ids sort by creation time: a job that was created and ended since the last update is announced too.
    this.#newest ??= rows.reduce((newest, { id }) => (id > newest ? id : newest), '');
    for (const row of rows) {
      const before = this.#before.get(row.id);
      this.#before.set(row.id, row);
      if (before?.stalled && !row.stalled) this.#withdrawStall(row.id);
      const news = before ? newsOf(before, row) : row.id > this.#newest && ENDED.has(row.state) ? endOf(row) : null;
      if (news && this.#isWanted(news)) this.#add(row, news);
    }
  }

  #isWanted({ kind }: News): boolean {
    return this.wanted === 'all' || (this.wanted === 'problems' && (kind === 'error' || kind === 'warning'));
  }

  #add(row: JobRow, news: News): void {
    this.#pending.set(row, news);
    if (document.hidden) this.#notifyInBackground(row, news);
    this.#timer ??= setTimeout(() => void this.#announce(), TOGETHER);
  }

  /** Show one toast for the jobs that are not on the screen; the bell gets the others. */
  async #announce(): Promise<void> {
    const items = this.#pending;
    this.#pending = new Map();
    this.#timer = undefined;
    const visible = new Set<JobRow>();
    for (const row of items.keys()) if (await isOnScreen(row.id)) visible.add(row);
    for (const shown of [true, false]) {
      const group = new Map([...items].filter(([row]) => visible.has(row) !== shown));
      if (group.size) this.#emit(group, shown ? SHOWN : 0);
    }
  }

  #emit(items: Map<JobRow, News>, autoClose: number): void {
    const kind = GRAVITY[Math.max(...[...items.values()].map((news) => GRAVITY.indexOf(news.kind)))] ?? 'info';
    const [first] = items.keys();
    const actions = first && items.size === 1 ? [{ label: __('Open'), caption: __('Open page'), callback: () => this.#open(first) }] : [];
    this.#notices.add({ id: Toast.emit(textOf(items), kind, { autoClose, actions: [...actions, ...this.#askToAllow()] }), items });
  }

  /** Withdraw the stall message of a job; texts of other jobs in the same notification stay in the bell. */
  #withdrawStall(id: string): void {
    this.#remove(this.#pending, id);
    for (const notice of [...this.#notices]) {
      const closed = !Toast.manager.has(notice.id);
      if (!closed && !this.#remove(notice.items, id)) continue;
      Toast.dismiss(notice.id);
      this.#notices.delete(notice);
      if (!closed && notice.items.size) this.#emit(notice.items, 0);
    }
  }

  #remove(items: Map<JobRow, News>, id: string): boolean {
    const stalls = [...items].filter(([row, news]) => row.id === id && news.whileStalled);
    for (const [row] of stalls) items.delete(row);
    return stalls.length > 0;
  }

  #open(row: JobRow): void {
    if (!isStudy(row)) void this.app.commands.execute(OPEN_JOB, { id: row.id });
    else if (row.group?.kind === 'sweep') void this.app.commands.execute(OPEN_SWEEP, { id: row.id });
    else void this.app.commands.execute('distdl:focus-sidebar');
  }

  #notifyInBackground(row: JobRow, { text }: News): void {
    if (!('Notification' in window) || Notification.permission !== 'granted') return;
    const shown = new Notification(nameOf(row), { body: text, tag: row.id });
    shown.onclick = () => {
      window.focus();
      this.#open(row);
      shown.close();
    };
  }

  /** A browser asks only after a click. */
  #askToAllow(): { label: string; caption: string; callback: () => void }[] {
    if (!('Notification' in window) || Notification.permission !== 'default') return [];
    const callback = (): void => void Notification.requestPermission();
    return [{ label: __('Notify me in the background'), caption: __('Let the browser notify you while this page is hidden'), callback }];
  }
}

const nameOf = (row: JobRow): string => `${titleOf(row)} ${shortId(row.id)}`;

function textOf(items: ReadonlyMap<JobRow, News>): string {
  const lines = [...items].map(([row, { text }]) => `${nameOf(row)}: ${text}`);
  const rest = lines.length - MOST_NAMED;
  const named = lines.slice(0, rest > 0 ? MOST_NAMED : lines.length).join('\n');
  return rest > 0 ? `${named}\n${_n('and %1 more job', 'and %1 more jobs', rest)}` : named;
}

function newsOf(before: JobRow, row: JobRow): News | null {
  if (ENDED.has(row.state) && !ENDED.has(before.state)) return endOf(row);
  if (row.alert && row.alert.text !== before.alert?.text) return { kind: row.alert.level === 'warning' ? 'warning' : 'info', text: row.alert.text };
  if (row.stalled && !before.stalled) return { kind: 'warning', text: unquoted(row.message), whileStalled: true };
  return null;
}

function endOf(row: JobRow): News | null {
  if (row.state === 'canceled') return null; // the user canceled it
  const value = isStudy(row) && row.value !== null ? `, ${metricOf(row)} ${number(row.value)}` : '';
  if (row.state === 'completed') return { kind: 'success', text: `${stateWord(row.state)}${value}` };
  return { kind: 'error', text: unquoted(row.message) || stateWord(row.state) };
}

export default plugin;
