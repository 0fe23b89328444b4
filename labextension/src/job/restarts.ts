/** Number of restarts of a job and the failure before the last one; earlier failures unfold. */
import type { Card } from './card';
import { fill, h, quoted, show } from '../ui/dom';
import { folded } from './text';
import { __ } from '../ui/trans';
import { clock } from '../ui/format';

export class Restarts {
  readonly root = h('div', { class: 'dd-restarts dd-s12', hidden: true });

  /** Show the restarts of a card; `hidden` is set if they do not fit. */
  update({ restarts, max_restarts: most }: Card, hidden: boolean): void {
    show(this.root, restarts.length > 0 && !hidden);
    fill(this.root, JSON.stringify([restarts, most]), () => {
      const last = restarts.at(-1);
      if (!last) return [];
      const requeued = restarts.filter((one) => one.requeued).length;
      const count = restarts.length - requeued;
      const restart = count <= most ? __('Restart %1 of %2', count, most) : __('Restart %1', count);
      const word = h('b', { class: 'dd-nw' }, last.requeued ? __('Requeue %1', requeued) : restart);
      const why = h('span', { class: 'dd-sub dd-ell' }, ...quoted(last.reason));
      const rows = restarts.map(({ t, reason }, at) => h('li', {}, h('span', { class: 'dd-num dd-sub' }, clock(t)), h('b', { class: 'dd-num' }, String(at + 1)), h('span', {}, ...quoted(reason))));
      return [folded(h('span', { class: 'dd-row' }, word, why), '', h('ol', {}, ...rows))];
    });
  }
}
