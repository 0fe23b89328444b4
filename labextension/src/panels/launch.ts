/** The launch form as an anywidget: a widget's model is the form's store. */
import { Bin, put, tell, type Context, type Model } from '../anywidget';
import { Form } from '../launchform/form';
import type { Fields, Store } from '../launchform/state';

function storeOf(model: Model): Store {
  return {
    get: (name) => model.get(name) as Fields[typeof name],
    set: (changes) => {
      for (const [name, value] of Object.entries(changes)) put(model, name, value);
    },
    send: ({ type, ...more }) => tell(model, type, more),
  };
}

export default {
  render({ model, el }: Context): () => void {
    const bin = new Bin();
    const form = new Form(storeOf(model));
    el.replaceChildren(form.element);
    form.update();
    bin.on(model, 'change', () => form.update());
    return bin.empty;
  },
};
