/** What a curve shows at first, before the user chooses at the curve itself. JupyterLab's settings say it once for the page. */
import type { Choice } from './picker';

let first: Choice = { metric: '', mode: 'band', log: false };

/** Return the first choice for a curve: the metric that says most, drawn as the user likes it. */
export const curveDefaults = (): Choice => ({ ...first });

/** Draw curves that are opened from now on like this. */
export function setCurveDefaults(mode: Choice['mode'], log: boolean): void {
  first = { metric: '', mode, log };
}
