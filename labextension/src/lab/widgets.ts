/**
 * The views of this package's widgets in JupyterLab and Notebook, found by the name that a kernel gives them. Nothing that a
 * notebook has saved of a widget is run. A job's view is the one of cell outputs, fed by the server.
 */
import { DOMWidgetModel, DOMWidgetView, IJupyterWidgetRegistry, JupyterLuminoPanelWidget } from '@jupyter-widgets/base';
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry, MimeModel } from '@jupyterlab/rendermime';
import { azureSignIn } from '../widgets/azure';
import type { Model } from '../widgets/kernel';
import { launchForm } from '../widgets/launch';
import { clusterActions } from './clusteractions';
import { NAME } from './ids';
import { ILanguage } from './language';
import { IDistDL, type DistDL } from './live';
import { JOB, jobs, renderersAround, ServedOutput } from './renderer';
import { __ } from '../ui/trans';

/** The name and version under which a kernel asks for the views. */
const [MODULE, VERSION] = ['distdl-jupyter', '1.0.0'];

/** A view that a function draws, which returns what removes it. */
function viewOf(draw: (model: Model, el: HTMLElement) => () => void): typeof DOMWidgetView {
  return class extends DOMWidgetView {
    #remove: () => void = () => undefined;

    override render(): void {
      super.render();
      this.#remove = draw(this.model as unknown as Model, this.el);
    }

    override remove(): this {
      this.#remove();
      return super.remove() as this;
    }
  };
}

/** The view of a job. Where the server does not know it the kernel draws its page, once a second. */
function jobView(output: (kept: () => void) => ServedOutput): typeof DOMWidgetView {
  return class extends DOMWidgetView {
    override _createElement(): HTMLElement {
      this.luminoWidget = new JupyterLuminoPanelWidget({ view: this });
      return this.luminoWidget.node;
    }

    override _setElement(el: HTMLElement): void {
      this.el = el;
    }

    override render(): void {
      super.render();
      const { model } = this;
      const shown = output(() => {
        model.set('redrawn', true);
        model.save_changes();
      });
      (this.luminoWidget as JupyterLuminoPanelWidget).addWidget(shown);
      // What a notebook saved of a widget is not trusted.
      const draw = (): void => void shown.renderModel(new MimeModel({ trusted: false, data: { [JOB]: { id: model.get('job_id') as string, version: 1 }, 'text/html': model.get('value') as string } }));
      this.listenTo(model, 'change:value', draw);
      draw();
    }
  };
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:widgets`,
  description: 'Draws the widgets of distributed training.',
  autoStart: true,
  requires: [ILanguage, IDistDL, IRenderMimeRegistry],
  optional: [IJupyterWidgetRegistry, INotebookTracker],
  activate: (app: JupyterFrontEnd, _language: unknown, distdl: DistDL, registry: IRenderMimeRegistry, widgets: IJupyterWidgetRegistry | null, notebooks: INotebookTracker | null) => {
    const renderers = renderersAround(registry, notebooks);
    const drawn = __('The server does not show this job. The kernel updates this page once a second.');
    const kind = { ...jobs(app, distdl), gone: drawn, silent: drawn };
    widgets?.registerWidget({
      name: MODULE,
      version: VERSION,
      exports: {
        PanelModel: DOMWidgetModel,
        job: jobView((kept) => new ServedOutput(kind, renderers, kept)),
        launch: viewOf((model, el) => launchForm(model, el, clusterActions(distdl.api))),
        azure: viewOf(azureSignIn),
      },
    });
  },
};

export default plugin;
