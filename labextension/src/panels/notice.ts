/** The foot of a job's panel as a widget. */
import { Bin, type Context } from '../anywidget';
import { adopt } from '../dom';
import { Notice, type NoticeCard } from '../notice';

function render({ model, el }: Context): () => void {
  const bin = new Bin();
  adopt(el);
  const notice = new Notice(el);
  const draw = (): void => notice.update(model.get('card') as NoticeCard, model.get('problem') as string);
  bin.on(model, 'change:card', draw);
  bin.on(model, 'change:problem', draw);
  draw();
  return bin.empty;
}

export default { render };
