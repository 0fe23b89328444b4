/**
 * The curves of a job, or of several jobs, as plotly figures.
 *
 * For one mode and set of ranks the traces have a fixed order, so that plotly updates a live figure trace by trace. plotly
 * renders markup in names, so the name of a job is escaped.
 */
import type { Band, CurveMessage as Curve } from '../api/schema';
import { clock, count, listing, number, rankCount, ranks } from '../ui/format';
import { __ } from '../ui/trans';

/** A figure for plotly. */
export interface Figure {
  data: readonly unknown[];
  layout: Record<string, unknown>;
}

type Trace = Record<string, unknown>;
type Row = Band['rows'][number];

/** The colours of a figure on light and on dark pages; `ground` is the page's own. */
const LIGHT = {
  ground: '#ffffff', ink: 'rgba(0,0,0,0.87)', dim: 'rgba(0,0,0,0.6)', grid: '#ececec', axis: '#c4c4c4', curve: '#1564b2', band: 'rgba(25,118,210,0.22)', haze: 'rgba(117,117,117,0.16)', warn: '#e65100', grey: 'rgba(117,117,117,0.45)',
  ranks: ['#0d4a94', '#a8430a', '#2f9a70', '#bd5fd2'],
};
const DARK: Colours = {
  ground: '#212121', ink: 'rgba(255,255,255,0.87)', dim: 'rgba(255,255,255,0.64)', grid: '#303030', axis: '#5a5a5a', curve: '#64b5f6', band: 'rgba(33,150,243,0.22)', haze: 'rgba(170,170,170,0.16)', warn: '#ff9800', grey: 'rgba(170,170,170,0.4)',
  ranks: ['#8cbbff', '#ee7f38', '#6af0b0', '#cc78b4'],
};

export type Colours = typeof LIGHT;
/** Makes a figure in the colours of the page. */
export type Drawing = (colours: Colours) => Figure;

/** Return the colours for a page with this background. */
export const coloursOf = (dark: boolean, ground: string): Colours => ({ ...(dark ? DARK : LIGHT), ...(ground && { ground }) });

/** More ranks than this are drawn in grey. */
const COLOURED = 8;
const DASHES = ['solid', 'dash', 'dot', 'dashdot', 'longdash', 'longdashdot'];
/** Format of numbers in hover texts: four digits, no trailing zeros. */
const FOUR_DIGITS = ',.4~g';
/** Maximum length of a job's name in the legend. */
const LONGEST_NAME = 24;

/** Return the curve of one metric: its mean with a band from the lowest to the highest rank, or a line per rank. */
export function curveFigure(curve: Curve, log: boolean, colours: Colours): Figure {
  const { band, earlier, lines, mode, value } = curve;
  const rows = [...band.rows, ...(earlier?.rows ?? [])];
  const values = rows.flatMap(({ low, high, mean }) => [low, high, mean]).filter((known) => known !== null);
  const isLog = log && values.some((known) => known > 0);
  // A logarithmic axis has no place for 0.
  const floor = isLog ? Math.min(...values.filter((known) => known > 0)) : -Infinity;
  const known = band.rows.filter(({ low }) => low !== null);
  const wide = mode === 'band' ? known.some(({ low, high }) => low !== high) : hidesValues(curve);
  const data = [...extent(known, floor, wide, mode === 'band' ? colours.band : colours.haze)];
  if (mode === 'band') data.push(mean(band, wide, colours), end(band, value, colours));
  else data.push(...lines.map((line, at) => rankLine(line, lines.length, at, colours)));
  data.push(marks(band, colours), ...(earlier ? branch(earlier, colours) : []));
  const notes = [...(curve.from_output ? [__('from the output')] : []), ...(log && values.length && !isLog ? [__('The log scale shows only values above 0.')] : [])];
  const legend = mode === 'band' ? wide || band.marks.length > 0 || !!earlier : lines.length > 1 || !!earlier;
  const layout = layoutOf(rows, values, isLog, legend || notes.length > 0, mode === 'band' && value ? 9 + 7 * value.length : 14, colours);
  const annotations = notes.length ? [{ text: notes.join('. '), showarrow: false, xref: 'paper', yref: 'paper', x: 0, y: 1, xanchor: 'left', yanchor: 'bottom' }] : [];
  const hovermode = lines.length > COLOURED ? 'closest' : 'x unified';
  return { data, layout: { ...layout, showlegend: legend, hovermode, annotations, uirevision: `${curve.metric}/${mode}/${log}` } };
}

/** Return the means of one metric of several jobs, one line per job. */
export function comparedFigure(metric: string, jobs: readonly { id: string; name: string }[], bands: readonly Band[], colours: Colours): Figure {
  const data = bands.map(({ rows }, at) => {
    const { id = '', name = '' } = jobs[at] ?? {};
    const title = escaped(`${name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name} ${id.slice(id.lastIndexOf('-') + 1)}`);
    return line(title, rows.map(({ step }) => step), rows.map((row) => row.mean), { line: jobStyle(at, colours), hovertemplate: `${title}  <b>${field('y')}</b><extra></extra>` });
  });
  const rows = bands.flatMap((band) => band.rows);
  const values = rows.map((row) => row.mean).filter((known) => known !== null);
  return { data, layout: { ...layoutOf(rows, values, false, true, 14, colours), showlegend: true, hovermode: 'x unified', uirevision: metric } };
}

/** Return colour and dash of a job's line: those of the first four jobs differ in both, those of others in at least one. */
export function jobStyle(at: number, { ranks: palette }: Colours): Trace {
  const dash = DASHES[(at + Math.floor(at / palette.length)) % DASHES.length];
  return { color: palette[at % palette.length], dash, width: 2 };
}

/** Return whether values lie beyond the lines of the ranks, because a point of a long line is the mean of many values. */
function hidesValues({ band, lines }: Curve): boolean {
  const drawn = lines.flatMap(({ values }) => values).filter((value) => value !== null);
  const [lowest, highest] = [Math.min(...drawn), Math.max(...drawn)];
  return band.rows.some(({ low, high }) => (low ?? lowest) < lowest || (high ?? highest) > highest);
}

function line(name: string, x: number[], y: (number | null)[], more: Trace): Trace {
  return { type: 'scatter', mode: 'lines', name, x, y, connectgaps: false, showlegend: true, ...more };
}

/** Return both edges of the band; a value that a logarithmic axis cannot show is drawn at the lowest one. */
function extent(rows: Row[], floor: number, visible: boolean, fillcolor: string): Trace[] {
  const x = rows.map(({ step }) => step);
  const edge = { line: { width: 0 }, hoverinfo: 'skip', visible };
  const [lows, highs] = [rows.map(({ low }) => Math.max(low ?? 0, floor)), rows.map(({ high }) => Math.max(high ?? 0, floor))];
  return [line('', x, lows, { ...edge, showlegend: false }), line(__('min to max'), x, highs, { ...edge, fill: 'tonexty', fillcolor, legendrank: 1100 })];
}

function mean({ rows, ranks: all }: Band, wide: boolean, { curve }: Colours): Trace {
  const several = all.length > 1;
  const who = (at: number): string => (several ? `, ${__('rank %1', `%{customdata[${at}]}`)}` : '');
  const hover = wide ? `${__('mean')} <b>${field('y')}</b><br>${__('highest')} ${field('customdata[1]')}${who(3)}<br>${__('lowest')} ${field('customdata[2]')}${who(4)}` : `<b>${field('y')}</b>`;
  return line(several ? __('mean of %1', all.length) : __('mean'), rows.map(({ step }) => step), rows.map((row) => row.mean), {
    showlegend: wide,
    customdata: rows.map(({ time, high, low, high_rank, low_rank }) => [clock(time), high, low, high_rank, low_rank]),
    line: { color: curve, width: 2 },
    hovertemplate: `${hover}<br>%{customdata[0]}<extra></extra>`,
  });
}

/** Return the newest value at the end of the line, as a dot with its number; one that is not finite is on the axis. */
function end({ rows, last_step: step }: Band, value: string, { curve, warn }: Colours): Trace {
  const y = rows.at(-1)?.mean ?? null;
  const color = y === null ? warn : curve;
  return points(value ? [step] : [], value ? [y ?? 0] : [], {
    mode: 'markers+text',
    yaxis: y === null ? 'y2' : 'y',
    marker: { color, size: 6, opacity: y === null ? 0 : 1 },
    text: [`<b>${value}</b>`],
    textposition: 'middle right',
    textfont: { color, size: 11 },
    cliponaxis: false,
  });
}

/** Return the line of a rank, named after it with its last value; of many ranks all lines are grey and share an entry. */
function rankLine({ rank, steps, times, values, last }: Curve['lines'][number], all: number, at: number, { grey, ranks: palette }: Colours): Trace {
  const title = __('rank %1', rank);
  const coloured = all <= COLOURED;
  const style = { color: palette[rank % palette.length], dash: Math.floor(rank / palette.length) % 2 ? 'dash' : 'solid', width: 1.5 };
  return line(coloured ? `${title}  ${number(last ?? NaN)}` : rankCount(all), steps, values, {
    showlegend: coloured || at === 0,
    customdata: times.map((time) => clock(time)),
    line: coloured ? style : { color: grey, width: 1 },
    hovertemplate: `${title}  <b>${field('y')}</b>  %{customdata}<extra></extra>`,
  });
}

/** Return crosses on the axis at the steps whose values were not finite. */
function marks({ marks: all }: Band, { warn }: Colours): Trace {
  const names = [...new Set(all.flatMap(({ kinds }) => kinds))];
  return points(all.map(({ step }) => step), all.map(() => 0), {
    name: names.join(', '),
    yaxis: 'y2',
    marker: { symbol: 'x-thin', size: 7, line: { color: warn, width: 2 } },
    visible: all.length > 0,
    showlegend: all.length > 0,
    legendrank: 1200,
    hovertext: all.map((mark) => __('step %1: %2 on %3', count(mark.step), listing([...mark.kinds]), ranks([...mark.ranks]))),
    hoverinfo: 'text',
    cliponaxis: false,
  });
}

/** Return the mean of the job from which this one was forked, with a ring at that step. */
function branch({ name, rows, step }: NonNullable<Curve['earlier']>, { curve, dim }: Colours): Trace[] {
  const at = step === null ? undefined : rows.findLast((row) => row.step <= step);
  const ring = { symbol: 'circle-open', size: 8, color: curve, line: { width: 2 } };
  const before = line(name, rows.map((row) => row.step), rows.map((row) => row.mean), { legendrank: 1150, line: { color: dim, width: 1 }, hovertemplate: `${name}  ${field('y')}<extra></extra>` });
  return at && step !== null ? [before, points([step], [at.mean], { marker: ring })] : [before];
}

function points(x: number[], y: (number | null)[], more: Trace): Trace {
  return { type: 'scatter', mode: 'markers', x, y, hoverinfo: 'skip', showlegend: false, ...more };
}

const field = (name: string): string => `%{${name}:${FOUR_DIGITS}}`;

const escaped = (text: string): string => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');

/** Return the layout. An axis begins at 0 if that takes little space; `y2` is the height of the plot, from 0 to 1. */
function layoutOf(rows: readonly Row[], values: number[], log: boolean, head: boolean, right: number, colours: Colours): Record<string, unknown> {
  const { ground, ink, grid, axis } = colours;
  const lines = { zeroline: false, gridcolor: grid, automargin: true };
  const steps = rows.map(({ step }) => step);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const fromZero = (low > 0 && low <= 0.4 * high) || (high < 0 && high >= 0.4 * low);
  return {
    margin: { l: 14, r: right, t: head ? 28 : 10, b: 26, pad: 0 },
    paper_bgcolor: ground,
    plot_bgcolor: ground,
    legend: { orientation: 'h', x: 1, xanchor: 'right', y: 1, yanchor: 'bottom', bgcolor: 'rgba(0,0,0,0)', itemclick: false, itemdoubleclick: false },
    hoverlabel: { bgcolor: ground, bordercolor: axis, font: { color: ink } },
    xaxis: {
      ...lines,
      rangemode: Math.min(...steps) <= 0.2 * Math.max(...steps) ? 'tozero' : 'normal',
      tickformat: ',',
      title: { text: __('step'), standoff: 2 },
      showgrid: false,
      showline: true,
      linecolor: axis,
      ticks: 'outside',
      ticklen: 3,
      tickcolor: axis,
      showspikes: true,
      spikemode: 'across',
      spikesnap: 'hovered data',
      spikedash: '2px,2px',
      spikethickness: 1,
      spikecolor: axis,
      unifiedhovertitle: { text: `<b>${__('step')} %{x:,}</b>` },
    },
    yaxis: { ...lines, type: log ? 'log' : 'linear', rangemode: fromZero ? 'tozero' : 'normal' },
    yaxis2: { overlaying: 'y', range: [0, 1], visible: false, fixedrange: true },
    dragmode: 'zoom',
  };
}
