/**
 * The curve of a job: toolbar, figure and table view. `request` names the values it needs; it draws the values that it
 * receives.
 */
import { assign, h, tabPanel } from '../ui/dom';
import { __ } from '../ui/trans';
import { Picker, type Choice, type Metric, type TableRow } from './picker';
import { Plot, type Figure } from './plotly';

/** A drawn metric, its curve in one sentence and as a table of a few rows. */
export interface CurveMessage extends Figure {
  metric: string;
  /** The newest value, as the end of the curve shows it. */
  value: string;
  summary: string;
  table: readonly (readonly string[])[];
}

export class CurveView {
  readonly root = h('div', { class: 'dd-curve' });
  readonly #bar = h('div');
  readonly #area = h('div', { class: 'dd-plot', role: 'img' });
  readonly #picker: Picker;
  readonly #plot = new Plot(this.#area);
  #request: Choice;
  #metrics: Metric[] = [];
  #severalRanks = false;
  /** The metric that is drawn when none was chosen. */
  #given = '';
  /** The value of the metric that is drawn: that of the curve, which may come a moment later than those of the others. */
  #value = '';

  constructor(choice: Choice, private readonly wanted: (request: Choice) => void, zoom: (on: boolean) => void) {
    this.#request = choice;
    const panel = tabPanel(__('Curve'), this.#area);
    this.#picker = new Picker(this.#bar, (chosen) => this.#want(chosen), zoom, panel.id);
    this.root.append(this.#bar, panel);
  }

  /** The curve to request; the metric "" is the most informative one. */
  get request(): Choice {
    return this.#request;
  }

  /** Show the metrics with their newest values. */
  update(metrics: Metric[], severalRanks: boolean): void {
    this.#metrics = metrics;
    this.#severalRanks = severalRanks;
    this.#drawBar();
  }

  /** Draw a curve that has come. */
  take(curve: CurveMessage): void {
    if (this.#request.metric && curve.metric !== this.#request.metric) return;
    this.#given = curve.metric;
    this.#value = curve.value;
    this.#drawBar();
    this.#plot.show(curve);
    this.#picker.table(curve.table as unknown as TableRow[]);
    assign(this.#area, { 'aria-label': curve.summary });
  }

  dispose(): void {
    this.#plot.dispose();
  }

  #drawBar(): void {
    const metrics = this.#metrics.map((metric) => (metric.name === this.#given && this.#value ? { ...metric, value: this.#value } : metric));
    this.#picker.update(metrics, { ...this.#request, metric: this.#request.metric || this.#given }, this.#severalRanks);
  }

  #want(change: Partial<Choice>): void {
    this.#request = { ...this.#request, ...change };
    this.wanted(this.#request);
  }
}
