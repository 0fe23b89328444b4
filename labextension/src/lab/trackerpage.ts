/** Pages of TensorBoard and MLflow as documents of the main area, through the server's own port and login. */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import { IFrame, MainAreaWidget } from '@jupyterlab/apputils';
import type { Api } from '../api/api';
import type { TrackerRow } from '../job/detail';
import { shortId } from '../ui/format';
import { isDark } from '../ui/theme';
import { ranksIcon } from './icons';

/** Show the page of a job's run: in a tab here, or in one of the browser where the tracker has a server of its own. */
export function openTracker(app: JupyterFrontEnd, api: Api, job: string, tracker: TrackerRow): void {
  if (!tracker.view) {
    window.open(tracker.url, '_blank', 'noopener');
    return;
  }
  const id = `distdl-${tracker.tracker}-${job}`;
  if (![...app.shell.widgets('main')].some((one) => one.id === id)) app.shell.add(page(id, job, tracker, api.viewUrl(tracker.view)), 'main');
  app.shell.activateById(id);
}

function page(id: string, job: string, { title, tracker, view }: TrackerRow, address: string): MainAreaWidget<IFrame> {
  const content = new IFrame({ sandbox: ['allow-same-origin', 'allow-scripts', 'allow-forms', 'allow-popups', 'allow-downloads', 'allow-modals'] });
  // TensorBoard asks the browser, not Lab, whether it is to be dark, unless its address says so.
  content.url = tracker === 'tensorboard' ? `${address}?darkMode=${isDark(document.body)}` : address;
  const widget = new MainAreaWidget({ content });
  widget.id = id;
  widget.title.label = view.includes('/mlflow/') ? title : `${title} ${shortId(job)}`;
  widget.title.icon = ranksIcon;
  widget.title.closable = true;
  return widget;
}
