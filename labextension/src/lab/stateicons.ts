/** The shapes of a job's states as icons of JupyterLab, for the tabs of pages; `lab.css` gives them their colours. */
import { LabIcon } from '@jupyterlab/ui-components';
import { icon } from '../ui/icons';
import type { ShownState } from '../ui/format';

const made = new Map<ShownState, LabIcon>();

/** Return the icon of a state, always the same one. */
export function stateIcon(state: ShownState): LabIcon {
  const known = made.get(state);
  if (known) return known;
  const fresh = new LabIcon({ name: `distdl:state-${state}`, svgstr: drawing(state, `dd-stateicon dd-stateicon-${state}`) });
  made.set(state, fresh);
  return fresh;
}

/** "Compare", for the tab of the page that compares jobs. */
export const compareIcon = new LabIcon({ name: 'distdl:compare', svgstr: drawing('compare', 'dd-stateicon') });

/** An icon as the text of a document of its own, as icons of JupyterLab are given. */
function drawing(name: string, className: string): string {
  return new XMLSerializer().serializeToString(icon(name, 16, className));
}
