/**
 * The log as a widget. Rows come as messages that append and replace, never as a trait that is sent whole.
 *
 * Until a front end has said hello, the kernel puts the newest rows into the trait `tail`, which every front end has when it
 * arrives; after the hello it sends the whole kept log once and then only what is new. A gap in the numbers of the messages
 * is answered by another hello. The rows live beside the model, so drawing a view anew needs no kernel.
 */
import { Bin, Retry, tell, whenAttached, type Context, type Model } from '../anywidget';
import { adopt } from '../dom';
import { questions } from '../kernel';
import { LogStore, type Changes, type Older } from '../logstore';
import { LogView, newPlace, type Setting } from '../logview';

interface LogMessage extends Changes {
  type: 'log';
  seq: number;
  /** Set on the answer to a hello: for whom it is; it replaces everything. */
  viewer?: string;
  /** Whether it replaces everything for all: too much is new, or the kernel went on far ahead. */
  whole?: boolean;
}

/** The answer to a wish for the rows before a number. */
interface OlderMessage extends Changes {
  type: 'older';
  viewer: string;
  before: number;
}

/** Milliseconds that the kernel has to answer. */
const PATIENCE = 10_000;

export default () => {
  const viewer = Math.random().toString(36).slice(2);
  const store = new LogStore();
  const place = newPlace();
  const redraws = new Set<() => void>();
  const wishes = new Map<number, (found: Changes) => void>();
  const retry = new Retry();
  let seq = -1;

  const olderOf = (model: Model): Older => (before) =>
    new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error('The kernel does not answer.')), PATIENCE);
      wishes.set(before, resolve);
      tell(model, 'older', { viewer, before });
    });

  const take = (model: Model, message: LogMessage): void => {
    if (message.viewer !== undefined && message.viewer !== viewer) return;
    const whole = message.viewer === viewer;
    if (!whole && seq < 0) return;
    if (!whole && message.seq !== seq + 1) {
      if (message.seq > seq + 1) tell(model, 'hello', { viewer });
      return;
    }
    seq = message.seq;
    const anew = whole || message.whole === true;
    store.apply(anew ? { ...message, older: olderOf(model) } : message, anew);
    for (const redraw of redraws) redraw();
  };
  const answered = (message: OlderMessage): void => {
    if (message.viewer !== viewer) return;
    wishes.get(message.before)?.(message);
    wishes.delete(message.before);
  };
  const takeTail = (model: Model): void => {
    const tail = model.get('tail') as Changes | Record<string, never>;
    if (seq >= 0 || !('rows' in tail)) return;
    store.apply(tail as Changes, true);
    for (const redraw of redraws) redraw();
  };

  return {
    initialize({ model }: { model: Model }): void {
      model.on('msg:custom', (message) => {
        const { type } = message as { type: string };
        if (type === 'log') take(model, message as LogMessage);
        else if (type === 'older') answered(message as OlderMessage);
      });
      model.on('change:tail', () => takeTail(model));
      takeTail(model);
    },

    render({ model, el }: Context): () => void {
      const bin = new Bin();
      adopt(el);
      // Not before: a page that shows the job in another way has the model too and needs no messages.
      const greet = (): void => {
        if (seq < 0 && retry.due()) tell(model, 'hello', { viewer });
      };
      greet();
      bin.every(1000, greet);
      const unfold = (): void => void el.closest('.dd-card')?.classList.add('dd-unfolded');
      const ask = questions(model, bin, 'picture');
      const view = new LogView(el, store, place, unfold, async (number) => (await ask('read', { number })) as string);
      const redraw = (): void => view.refresh();
      const set = (): void => view.set({ world: model.get('world'), failed: failedOf(model) } as Setting);
      redraws.add(redraw);
      bin.add(() => redraws.delete(redraw));
      bin.on(model, 'change:failed', set);
      set();
      const observer = new ResizeObserver(redraw);
      observer.observe(el);
      bin.add(() => observer.disconnect());
      whenAttached(el, () => {
        if (!place.folded) unfold();
        view.restore();
      });
      return bin.empty;
    },
  };
};

function failedOf(model: Model): Setting['failed'] {
  const failed = model.get('failed') as Partial<NonNullable<Setting['failed']>>;
  return failed.text === undefined ? null : { rank: failed.rank ?? null, text: failed.text };
}
