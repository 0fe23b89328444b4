/** How a cluster gets a name: the page's own form for it, or the line of Python that does the same. */
import { copyable } from '../checks';
import { h } from '../dom';
import { __ } from '../lab/trans';
import { link } from './controls';

const EXAMPLE = 'add_cluster("lab", "ssh", hosts=["gpu1", "gpu2"])';

/** Return the link below the list of clusters; `open` is the page's form for a new one. */
export function newCluster(open?: () => void): HTMLElement {
  if (open) return h('div', { class: 'dd-form-note' }, link(__('Add cluster'), open));
  const line = h('div', { class: 'dd-form-note', hidden: true }, copyable(__('Run this in a cell with your hosts, after importing it from distdl_jupyter:') + ' ', EXAMPLE));
  const shown = link(__('Add cluster'), () => {
    line.hidden = !line.hidden;
    shown.setAttribute('aria-expanded', String(!line.hidden));
  });
  shown.setAttribute('aria-expanded', 'false');
  return h('div', {}, h('div', { class: 'dd-form-note' }, shown), line);
}
