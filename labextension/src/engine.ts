/**
 * plotly's drawing code, loaded once a page however many panels it shows.
 *
 * It is 5 MB. As a widget's own module it would travel with every panel, and on a slow machine it would not be there
 * within the two seconds that anywidget gives a model. So the kernel sends it when the first panel asks for it.
 */

import { Retry } from './anywidget';

/** What plotly's widget bundle exports: one widget for each call. */
export type Factory = () => { initialize?(context: unknown): unknown; render?(context: unknown): unknown };

interface Slot {
  loaded: Promise<Factory>;
  resolve: (factory: Factory) => void;
  here: boolean;
  retry: Retry;
}

const KEY = Symbol.for('distdl.plotly');

function slot(): Slot {
  const page = globalThis as unknown as Record<symbol, Slot | undefined>;
  return (page[KEY] ??= fresh());
}

function fresh(): Slot {
  let resolve: Slot['resolve'] = () => undefined;
  const loaded = new Promise<Factory>((done) => (resolve = done));
  return { loaded, resolve, here: false, retry: new Retry() };
}

/** The drawing code, as soon as it is there. */
export function engine(): Promise<Factory> {
  return slot().loaded;
}

/** Whether the caller should ask its kernel for the drawing code now. */
export function wanted(): boolean {
  const one = slot();
  return !one.here && one.retry.due();
}

/** Take the drawing code that a kernel has sent. */
export async function install(code: DataView): Promise<void> {
  const one = slot();
  if (one.here) return;
  const bytes = new Uint8Array(code.buffer as ArrayBuffer, code.byteOffset, code.byteLength);
  const address = URL.createObjectURL(new Blob([bytes], { type: 'text/javascript' }));
  try {
    const module = (await import(/* webpackIgnore: true */ address)) as { default: Factory };
    one.here = true;
    one.resolve(module.default);
  } finally {
    URL.revokeObjectURL(address);
  }
}
