/**
 * plotly's drawing code, loaded once a page however many panels it shows.
 *
 * It is 5 MB. As a widget's own module it would travel with every panel, and on a slow machine it would not be there
 * within the two seconds that anywidget gives a model. So the kernel sends it when the first panel asks for it.
 */

/** What plotly's widget bundle exports: one widget for each call. */
export type Factory = () => { initialize?(context: unknown): unknown; render?(context: unknown): unknown };

interface Slot {
  loaded: Promise<Factory>;
  resolve: (factory: Factory) => void;
  here: boolean;
  asked: number;
  patience: number;
}

const KEY = Symbol.for('distdl.plotly');
/**
 * Milliseconds after which a panel asks again, twice as long each time: the kernel that was asked first may be gone, or
 * runs a cell and does not read what was sent before its subshell was there.
 */
const PATIENCE = 4_000;

function slot(): Slot {
  const page = globalThis as unknown as Record<symbol, Slot | undefined>;
  return (page[KEY] ??= fresh());
}

function fresh(): Slot {
  let resolve: Slot['resolve'] = () => undefined;
  const loaded = new Promise<Factory>((done) => (resolve = done));
  return { loaded, resolve, here: false, asked: -Infinity, patience: PATIENCE / 2 };
}

/** The drawing code, as soon as it is there. */
export function engine(): Promise<Factory> {
  return slot().loaded;
}

/** Whether the caller should ask its kernel for the drawing code now. */
export function wanted(): boolean {
  const one = slot();
  if (one.here || performance.now() - one.asked < one.patience) return false;
  one.asked = performance.now();
  one.patience *= 2;
  return true;
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
