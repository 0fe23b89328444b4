/** The icon of distributed training: four ranks in a ring, in the colours of the theme. */
import { LabIcon } from '@jupyterlab/ui-components';

const DRAWING = `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">
  <g class="jp-icon3" fill="none" stroke="#616161" stroke-width="1.3"><circle cx="8" cy="8" r="4.6"/></g>
  <g class="jp-icon3" fill="#616161"><circle cx="8" cy="3.4" r="2"/><circle cx="12.6" cy="8" r="2"/>
  <circle cx="8" cy="12.6" r="2"/><circle cx="3.4" cy="8" r="2"/></g>
</svg>`;

/** "distdl:ranks", the name that the settings' schema uses too. */
export const ranksIcon = new LabIcon({ name: 'distdl:ranks', svgstr: DRAWING });
