/** What a curve shows at first, before the user chooses at the curve itself. JupyterLab's settings set it for the page. */
import type { Choice } from './picker';

let first: Choice = { metric: '', mode: 'band', log: false };

/** Return the first choice for a curve: the most informative metric, drawn with the user's settings. */
export const curveDefaults = (): Choice => ({ ...first });

/** Draw curves that are opened from now on like this. */
export function setCurveDefaults(mode: Choice['mode'], log: boolean): void {
  first = { metric: '', mode, log };
}
