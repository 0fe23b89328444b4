/** The bar over the curve as a widget. It also keeps the figure below it fitting and named for screen readers. */
import { Bin, put, tell, type Context, type Model } from '../anywidget';
import { adopt, assign } from '../dom';
import { engine, install, wanted } from '../engine';
import { Picker, type Choice, type Metric, type TableRow } from '../picker';

/** What Plotly hangs on its element when it is told to be responsive. */
interface Plot extends HTMLElement {
  _responsiveChartHandler?: () => void;
}

function render({ model, el }: Context): () => void {
  const bin = new Bin();
  adopt(el);
  const choose = ({ metric, mode, log }: Choice): void => {
    model.set('metric', metric);
    model.set('mode', mode);
    put(model, 'logarithmic', log);
  };
  const picker = new Picker(el, choose, (on) => el.closest('.dd-body')?.classList.toggle('dd-zoomed', on));
  const plot = (): Plot | null => el.closest('.dd-curve')?.querySelector<Plot>('.dd-plot') ?? null;
  const draw = (): void => {
    const choice = { metric: model.get('metric'), mode: model.get('mode'), log: model.get('logarithmic') } as Choice;
    picker.update(model.get('metrics') as Metric[], choice, (model.get('world') as number) > 1);
  };
  const describe = (): void => {
    picker.table(model.get('table') as TableRow[]);
    const area = plot();
    if (area) assign(area, { role: 'img', 'aria-label': model.get('summary') as string });
  };
  for (const name of ['metrics', 'metric', 'mode', 'logarithmic']) bin.on(model, `change:${name}`, draw);
  for (const name of ['summary', 'table']) bin.on(model, `change:${name}`, describe);
  draw();
  const observer = new ResizeObserver(() => {
    describe();
    fit(plot());
  });
  observer.observe(el);
  bin.add(() => observer.disconnect());
  bin.every(250, () => fit(plot()));
  bringEngine(bin, model);
  return bin.empty;
}

/** See to it that plotly's drawing code gets into this page, and tell the kernel when it is there. */
function bringEngine(bin: Bin, model: Model): void {
  let gone = false;
  bin.add(() => (gone = true));
  bin.on(model, 'msg:custom', (message, buffers) => {
    if ((message as { type?: string }).type === 'engine' && buffers?.[0]) void install(buffers[0]);
  });
  const ask = (): void => {
    if (wanted()) tell(model, 'engine');
  };
  ask();
  bin.every(1000, ask);
  void engine().then(() => {
    if (!gone) tell(model, 'ready');
  });
}

/** Let the figure take the size of its place; it only notices the window's size by itself. */
function fit(area: Plot | null): void {
  const figure = area?.querySelector<Plot>('.js-plotly-plot');
  const drawn = figure?.querySelector('svg.main-svg');
  if (!area || !figure || !drawn || !area.clientWidth || document.hidden) return;
  const style = getComputedStyle(area);
  const room = area.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  const height = area.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
  const same = Math.abs(drawn.clientWidth - room) < 2 && Math.abs(drawn.clientHeight - height) < 2;
  if (same) area.classList.add('dd-fitted');
  else figure._responsiveChartHandler?.();
}

export default { render };
