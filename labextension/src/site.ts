/** The views of jobs and launch forms for pages without JupyterLab: the documentation site, and a page of the tests. */
import { Api, type Transport } from './api/api';
import { Live, type Dial } from './api/stream';
import { JobView } from './job/jobview';
import { jobHost } from './lab/jobhost';
import { whenAttached } from './ui/dom';

export { clusterActions } from './lab/clusteractions';
export { FormFrame } from './form/frame';
export { launchForm } from './widgets/launch';
export { setDocs } from './ui/refusal';
export { Api };

/** Draw a job into an element; returns the function that removes it. */
export function job(el: HTMLElement, id: string, api: Api, dial: Dial, transport: Transport): () => void {
  const live = new Live(dial, transport, (job) => (before) => api.log(job, { before, limit: 5000 }));
  const view = new JobView(el, jobHost({ api, live }, id, () => undefined), { detachable: true });
  whenAttached(el, () => view.refresh());
  return () => {
    view.dispose();
    live.dispose();
  };
}
