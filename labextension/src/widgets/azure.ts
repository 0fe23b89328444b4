/** The panel "Sign in to Azure" as a widget: its kernel answers what JupyterLab's sidebar asks the server. */
import { Disposables, type Context } from './model';
import { kernelActions } from '../azure/asked';
import { SignIn } from '../azure/signin';
import { adopt, h } from '../ui/dom';
import { icon } from '../ui/icons';
import { questions } from './kernel';
import { __ } from '../ui/trans';

export default {
  render({ model, el }: Context): () => void {
    const disposables = new Disposables();
    const view = new SignIn(kernelActions(questions(model, disposables)));
    const title = h('h2', { class: 'dd-title dd-row' }, icon('cloud'), __('Sign in to Azure'));
    const panel = h('section', { class: 'dd-azure-panel', 'aria-label': __('Sign in to Azure') }, title, view.element);
    adopt(panel);
    el.replaceChildren(panel);
    view.wake();
    disposables.add(() => view.rest());
    return disposables.empty;
  },
};
