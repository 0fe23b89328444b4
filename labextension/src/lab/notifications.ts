/** Toasts, and notifications of the browser while the page is hidden: how jobs and studies end, that jobs stall, and what their rules say. */
import { Notification as Toast } from '@jupyterlab/apputils';
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { isStudy, metricOf, titleOf } from '../sidebar/study';
import type { JobRow } from '../sidebar/types';
import { ENDED, number, shortId, stateWord } from '../ui/format';
import { __ } from '../ui/trans';
import { NAME, SETTINGS } from './ids';
import { OPEN_JOB } from './jobpage';
import type { JobList } from './jobs';
import { ILanguage } from './language';
import { ISidebar } from './sidebar';
import { OPEN_SCALING, OPEN_SWEEP } from './studypage';

/** What a user hears of: everything, only what goes wrong, nothing. */
type Wanted = 'all' | 'problems' | 'none';
type Kind = 'success' | 'error' | 'warning' | 'info';

interface News {
  kind: Kind;
  text: string;
}

/** Milliseconds for which a toast about a good end stays; a problem stays until it is closed. */
const STAYS = 8000;

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:notifications`,
  description: 'Notifications about jobs that end, fail, stall or fulfil a rule.',
  autoStart: true,
  requires: [ILanguage, ISidebar],
  optional: [ISettingRegistry],
  activate: (app: JupyterFrontEnd, _language: unknown, { jobList }: ISidebar, settings: ISettingRegistry | null) => {
    const told = new Announcer(app, jobList);
    void settings?.load(SETTINGS).then((loaded) => {
      const follow = (): void => {
        told.wanted = loaded.get('notifications').composite as Wanted;
      };
      follow();
      loaded.changed.connect(follow);
    });
  },
};

/** Compares what is known of each job with what was known before. What had happened before the page was there is no news. */
class Announcer {
  wanted: Wanted = 'all';
  readonly #before = new Map<string, JobRow>();
  /** The newest id when the page came. */
  #newest: string | undefined;

  constructor(private readonly app: JupyterFrontEnd, jobList: JobList) {
    jobList.changed.connect(({ rows, studies }) => this.#take([...studies, ...rows.filter(({ group }) => !group)])); // nobody waits for a run by itself
  }

  #take(rows: readonly JobRow[]): void {
    // Ids sort by the time of their making: what came since and ended before it was seen is news too.
    this.#newest ??= rows.reduce((newest, { id }) => (id > newest ? id : newest), '');
    for (const row of rows) {
      const before = this.#before.get(row.id);
      this.#before.set(row.id, row);
      const news = before ? newsOf(before, row) : row.id > this.#newest && ENDED.has(row.state) ? endOf(row) : null;
      if (news && this.#isWanted(news)) this.#announce(row, news);
    }
  }

  #isWanted({ kind }: News): boolean {
    return this.wanted === 'all' || (this.wanted === 'problems' && (kind === 'error' || kind === 'warning'));
  }

  #announce(row: JobRow, { kind, text }: News): void {
    const page = !isStudy(row) ? OPEN_JOB : row.group?.kind === 'sweep' ? OPEN_SWEEP : OPEN_SCALING;
    const open = (): void => void this.app.commands.execute(page, { id: row.id });
    const title = `${titleOf(row)} ${shortId(row.id)}`;
    const actions = [{ label: __('Open'), caption: __('Open page'), callback: open }, ...this.#askToAllow()];
    Toast.emit(`${title}: ${text}`, kind, { autoClose: kind === 'success' || kind === 'info' ? STAYS : false, actions });
    if (!document.hidden || !('Notification' in window) || Notification.permission !== 'granted') return;
    const shown = new Notification(title, { body: text, tag: row.id });
    shown.onclick = () => {
      window.focus();
      open();
      shown.close();
    };
  }

  /** A browser asks only when somebody has clicked. */
  #askToAllow(): { label: string; caption: string; callback: () => void }[] {
    if (!('Notification' in window) || Notification.permission !== 'default') return [];
    const callback = (): void => void Notification.requestPermission();
    return [{ label: __('Also when hidden'), caption: __('Let the browser notify you while this page is hidden'), callback }];
  }
}

function newsOf(before: JobRow, row: JobRow): News | null {
  if (ENDED.has(row.state) && !ENDED.has(before.state)) return endOf(row);
  if (row.alert && row.alert !== before.alert) return { kind: row.alert_level === 'warning' ? 'warning' : 'info', text: row.alert };
  if (row.stalled && !before.stalled) return { kind: 'warning', text: row.says };
  return null;
}

function endOf(row: JobRow): News | null {
  if (row.state === 'canceled') return null; // whoever canceled it knows
  const value = isStudy(row) && row.value !== null ? `, ${metricOf(row)} ${number(row.value)}` : '';
  if (row.state === 'completed') return { kind: 'success', text: `${stateWord(row.state)}${value}` };
  return { kind: 'error', text: row.says || stateWord(row.state) };
}

export default plugin;
