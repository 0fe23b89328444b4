/**
 * The views of this package's widgets in JupyterLab and Notebook, found by the name that a kernel gives them. Nothing that a
 * notebook has saved of a widget is run.
 */
import { DOMWidgetModel, DOMWidgetView, IJupyterWidgetRegistry } from '@jupyter-widgets/base';
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import type { Context, Model } from '../widgets/model';
import azure from '../widgets/azure';
import job from '../widgets/job';
import launch from '../widgets/launch';
import { NAME } from './ids';
import { ILanguage } from './language';

/** The name and version under which a kernel asks for the views. */
const [MODULE, VERSION] = ['distdl-jupyter', '1.0.0'];

interface Panel {
  render(context: Context): () => void;
}

function viewOf(panel: Panel): typeof DOMWidgetView {
  return class extends DOMWidgetView {
    #undo: () => void = () => undefined;

    override render(): void {
      super.render();
      this.#undo = panel.render({ model: this.model as unknown as Model, el: this.el });
    }

    override remove(): this {
      this.#undo();
      return super.remove() as this;
    }
  };
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:widgets`,
  description: 'Draws the widgets of distributed training.',
  autoStart: true,
  requires: [ILanguage],
  optional: [IJupyterWidgetRegistry],
  activate: (_app, _language, registry: IJupyterWidgetRegistry | null) => {
    registry?.registerWidget({
      name: MODULE,
      version: VERSION,
      exports: { PanelModel: DOMWidgetModel, job: viewOf(job), launch: viewOf(launch), azure: viewOf(azure) },
    });
  },
};

export default plugin;
