/** The head of a job's panel as a widget: header, phases while it sets up, the failure when it failed. */
import { Bin, put, tell, whenAttached, type Context } from '../anywidget';
import type { Card, Stacks } from '../card';
import { adopt, h } from '../dom';
import { FailureView, inNotebook } from '../failure';
import { Header } from '../header';
import { questions } from '../kernel';
import { PicturesView } from '../pictures';
import { Setup } from '../setup';
import { StacksView } from '../stacks';
import { isDark, watchTheme } from '../theme';
import { ENDED } from '../words';

const SETUP = new Set(['queued', 'preparing', 'starting']);

function render({ model, el }: Context): () => void {
  const bin = new Bin();
  adopt(el);
  const [top, failureRoot, setupRoot, stacksRoot, picturesRoot] = [h('div'), h('div'), h('div'), h('div'), h('div')];
  el.append(top, failureRoot, setupRoot, stacksRoot, picturesRoot);
  const ask = questions(model, bin, 'stacks');
  const header = new Header(top, {
    cancel: () => tell(model, 'cancel'),
    kill: () => tell(model, 'kill'),
    rerun: () => tell(model, 'rerun'),
    resume: () => tell(model, 'resume'),
    stacks: () => stacks.toggle(),
    detach: () => put(model, 'detached', true),
    attach: () => put(model, 'detached', false),
  });
  const failure = new FailureView(failureRoot, { rerun: () => tell(model, 'rerun'), resume: () => tell(model, 'resume') });
  const source = { ask: () => ask('take'), read: async (number: number) => (await ask('read', { number })) as Stacks };
  const stacks = new StacksView(stacksRoot, source, inNotebook, (open) => header.stacksShown(open));
  bin.add(() => stacks.dispose());
  const askPicture = questions(model, bin, 'picture');
  const pictures = new PicturesView(picturesRoot, async (number) => (await askPicture('read', { number })) as string);
  bin.add(() => pictures.dispose());
  const setup = new Setup(setupRoot, header.clock);
  header.clock.startAt(model.get('beat') as number);

  const draw = (): void => {
    const card = model.get('card') as Card;
    const detached = Boolean(model.get('detached'));
    if (!card.id) return;
    if (ENDED.has(card.state)) holdHeight(el);
    header.update(card, detached);
    setup.update(card);
    setupRoot.classList.toggle('dd-gone', !SETUP.has(card.state) || detached);
    failure.update(card);
    stacks.update(card);
    pictures.update(card);
    const panel = el.closest('.dd-card');
    if (panel) setParts(panel, card, detached);
  };
  bin.on(model, 'change:card', draw);
  bin.on(model, 'change:detached', draw);
  bin.on(model, 'change:beat', () => header.clock.sync(model.get('beat') as number));
  bin.on(model, 'msg:custom', (message) => {
    if ((message as { type: string }).type === 'release') header.release();
  });
  bin.every(500, () => {
    header.tick();
    setup.tick();
  });
  const tellTheme = (): void => {
    if (model.get('dark') !== isDark(el)) put(model, 'dark', isDark(el));
  };
  draw();
  whenAttached(el, () => {
    draw();
    tellTheme();
    bin.add(watchTheme(el, tellTheme));
  });
  return bin.empty;
}

/** Say on the whole panel which of its parts are to be seen; the style sheet does the rest. */
function setParts(panel: Element, card: Card, detached: boolean): void {
  panel.classList.toggle('dd-detached', detached);
  panel.classList.toggle('dd-failed', card.failure !== null);
  panel.classList.toggle('dd-with-curve', card.has_metrics);
  panel.classList.toggle('dd-with-log', card.lines > 0 || !SETUP.has(card.state));
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
