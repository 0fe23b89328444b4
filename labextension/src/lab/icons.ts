/** The icon of distributed training: ranks that are joined, in the colours of the theme. */
import { LabIcon } from '@jupyterlab/ui-components';

/** `jp-icon3` colours strokes by the theme; a `fill` beside it would be coloured too, so it is set on the root. */
const DRAWING = `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16" fill="none">
  <g class="jp-icon3 jp-icon-selectable" stroke="#616161" stroke-width="1.4" stroke-linecap="round">
    <circle cx="8" cy="3.6" r="1.8"/><circle cx="3.6" cy="12" r="1.8"/><circle cx="12.4" cy="12" r="1.8"/>
    <path d="M7.2 5.3L4.5 10.3M8.8 5.3l2.7 5M5.5 12h5"/>
  </g>
</svg>`;

/** "distdl:ranks", the name that the settings' schema uses too. */
export const ranksIcon = new LabIcon({ name: 'distdl:ranks', svgstr: DRAWING });
