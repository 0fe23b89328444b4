/** The curve of a job: toolbar, figure and table view. It requests the values that it needs, and draws those that arrive. */
import type { Band, CurveMessage as Curve } from '../api/schema';
import { assign, h, tabPanel } from '../ui/dom';
import { count, number } from '../ui/format';
import { __ } from '../ui/trans';
import { curveFigure } from './figure';
import { Picker, type Choice, type Metric, type TableRow } from './picker';
import { Plot } from './plotly';

/** Maximum number of rows of the table view. */
const ROWS = 24;

export class CurveView {
  readonly root = h('div', { class: 'dd-curve' });
  readonly #bar = h('div');
  readonly #area = h('div', { class: 'dd-plot', role: 'img' });
  readonly #picker: Picker;
  readonly #plot = new Plot(this.#area);
  #request: Choice;
  #metrics: Metric[] = [];
  #severalRanks = false;
  /** The metric that is drawn if none was selected. */
  #given = '';
  /** The value at the end of the drawn curve, which may arrive later than the values of the other metrics. */
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

  /** Draw a curve. */
  take(curve: Curve): void {
    if (this.#request.metric && curve.metric !== this.#request.metric) return;
    this.#given = curve.metric;
    this.#value = curve.value;
    this.#drawBar();
    const { log } = this.#request;
    this.#plot.show((colours) => curveFigure(curve, log, colours));
    this.#picker.table(tableOf(curve.band));
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

/** Return a few rows spread over the curve, the newest first. */
function tableOf({ rows }: Band): TableRow[] {
  const last = rows.length - 1;
  const few = last < ROWS ? [...rows] : Array.from({ length: ROWS }, (_, at) => rows[Math.round((at * last) / (ROWS - 1))]);
  const withRank = (value: number | null, rank: number | null): string => (value === null ? '' : `${number(value)} (${rank})`);
  return few.reverse().flatMap((row) => (row ? [[count(row.step), row.mean === null ? __('not a number') : number(row.mean), withRank(row.low, row.low_rank), withRank(row.high, row.high_rank)]] : []));
}
