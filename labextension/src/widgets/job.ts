/** A job as a widget: the view of JupyterLab's pages, fed by the widget's kernel. */
import { Disposables, whenAttached, type Context, type Model } from './model';
import type { Card, Stacks } from '../job/card';
import type { JobProfile } from '../job/profile';
import type { Choice } from '../job/picker';
import { JobView, type JobHost } from '../job/jobview';
import { questions, type Ask } from './kernel';
import { KernelSocket } from './kernelsocket';
import { Live } from '../api/stream';
import { __ } from '../ui/trans';
import type { Changes } from '../job/logstore';
import { ENDED } from '../ui/format';

/** Seconds of silence after which the kernel counts as gone, and between two tries to reach it. */
const TIMEOUTS = { silence: 5, retry: [2, 30] } as const;
/** Milliseconds for which what is known is kept when a view goes away: the same may be drawn anew. */
const KEPT = 5_000;

/** What all views of a model share on this page. */
interface Shared {
  ask: Ask;
  live: Live;
}

const shared = new WeakMap<Model, Shared>();

function made(model: Model): Shared {
  const ask = questions(model, new Disposables());
  const older = async (before: number): Promise<Changes> => (await ask('log', { before })) as Changes;
  const live = new Live(() => new KernelSocket(model), () => Promise.reject(new Error()), () => older, TIMEOUTS);
  shared.set(model, { ask, live });
  return { ask, live };
}

function render({ model, el }: Context): () => void {
  const disposables = new Disposables();
  const id = model.get('job_id') as string;
  const { ask, live } = shared.get(model) ?? made(model);
  let drawn: Choice | null = null;
  const host: JobHost = {
    watch: ({ log, curve }, handlers) => {
      drawn = curve ?? drawn;
      return live.watchJob(id, { log, curve }, handlers);
    },
    connected: () => live.state === 'live',
    cancel: (now) => ask('cancel', { now }),
    rerun: () => ask('rerun'),
    resume: () => ask('resume'),
    askStacks: () => ask('take_stacks'),
    stacks: async (number) => (await ask('stacks', { number })) as Stacks,
    askProfile: (steps, ranks) => ask('take_profile', { steps, ranks }),
    profile: async (number) => (await ask('profile', { number })) as JobProfile,
    picture: async (number) => (await ask('picture', { number })) as string,
  };
  const silence = ({ id }: Card): string => __('The kernel is not responding. The job keeps running; %1 shows it again.', `%dist_attach ${id}`);
  const changed = ({ card }: { card: Card }): void => {
    if (ENDED.has(card.state)) holdHeight(el);
  };
  const view = new JobView(el, host, { detachable: true, extras: { paused: '', silence }, changed });
  disposables.add(() => {
    const kept = live.watchJob(id, { log: true, curve: drawn }, {});
    setTimeout(() => kept.dispose(), KEPT);
    view.dispose();
  });
  whenAttached(el, () => view.refresh());
  return disposables.empty;
}

/**
 * Keep the height of the cell's output for a moment. When a job ends its output is replaced once by its last state, and the
 * page below must not jump while the front end draws the same panel again.
 */
function holdHeight(el: HTMLElement): void {
  const output = el.closest<HTMLElement>('.jp-OutputArea-output');
  if (!output || output.style.minHeight) return;
  output.style.minHeight = `${output.offsetHeight}px`;
  setTimeout(() => (output.style.minHeight = ''), 4000);
}

export default { render };
