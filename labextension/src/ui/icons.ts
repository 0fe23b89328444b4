/** Icons of 16 px drawn with a stroke of 1.5 px in the colour of the text. Every icon has a label or a tooltip. */

const CIRCLE = (radius: number, more = ''): string => `circle cx=8 cy=8 r=${radius}${more}`;

/** Each shape is "tag attribute=value ..."; attribute values hold no spaces except in `d`, which comes last. */
const SHAPES: Record<string, string[]> = {
  check: ['path d=M3.2 8.6 6.4 11.8 12.8 4.6'],
  close: ['path d=M4.2 4.2 11.8 11.8M11.8 4.2 4.2 11.8'],
  right: ['path d=M6 3.8 10.2 8 6 12.2'],
  down: ['path d=M3.8 6 8 10.2 12.2 6'],
  plus: ['path d=M8 3.2V12.8M3.2 8H12.8'],
  minus: ['path d=M3.2 8H12.8'],
  search: ['circle cx=6.9 cy=6.9 r=4.1', 'path d=M10 10 13.4 13.4'],
  copy: ['rect x=5.6 y=5.6 width=7.8 height=7.8 rx=1', 'path d=M10.4 5.4V2.6H2.6V10.4H5.4'],
  follow: ['path d=M4 3.6 8 7.6 12 3.6M4 8.4 8 12.4 12 8.4'],
  warn: ['path d=M8 2.6 14 13H2Z', 'path d=M8 6.6V9.4M8 11.2V11.3'],
  info: [CIRCLE(5.7), 'path d=M8 7.4V10.7M8 5.2V5.3'],
  help: [CIRCLE(5.7), 'path d=M6.3 6.4A1.75 1.75 0 1 1 8.5 8C8.15 8.2 8 8.4 8 8.9M8 10.9V11'],
  zoom: ['path d=M3 6V3H6M10 3H13V6M13 10V13H10M6 13H3V10'],
  table: ['rect x=2.6 y=3.2 width=10.8 height=9.6 rx=1', 'path d=M2.6 6.6H13.4M6.6 6.6V12.8'],
  rerun: ['path d=M12.7 6.8A5 5 0 1 0 12.2 10.9', 'path d=M13 3.3V6.9H9.4'],
  cell: ['rect x=2.5 y=3.8 width=11 height=8.4 rx=1', 'path d=M5 6.6 6.6 8 5 9.4M8.4 9.6H10.8'],
  detach: ['path d=M9.6 2.8H13.2V13.2H2.8V9.6', 'path d=M7.8 8.2 2.8 3.2M2.8 6.4V3.2H6'],
  attach: ['path d=M9.6 2.8H13.2V13.2H2.8V9.6', 'path d=M2.8 2.8 8 8M8 4.8V8H4.8'],
  compare: ['path d=M2.6 4H13.4M2.6 8H9.6M2.6 12H6.4'],
  file: ['path d=M4 2.6H9.2L12 5.4V13.4H4ZM9 2.8V5.6H11.8'],
  stop: ['rect x=4.2 y=4.2 width=7.6 height=7.6 rx=0.5'],
  wrap: ['path d=M2.6 4H13.4M2.6 8H11.2A2 2 0 0 1 11.2 12H8M9.6 10.4 8 12 9.6 13.6M2.6 12H5'],
  server: ['rect x=2.6 y=2.6 width=10.8 height=4.6 rx=1', 'rect x=2.6 y=8.8 width=10.8 height=4.6 rx=1', 'path d=M5 4.9H5.1M5 11.1H5.1'],
  laptop: ['rect x=3.5 y=3.4 width=9 height=6.4 rx=1', 'path d=M1.8 12.4H14.2'],
  cloud: ['path d=M4.6 12.6H11.4A2.6 2.6 0 0 0 11.7 7.4A3.9 3.9 0 0 0 4.2 6.8A2.95 2.95 0 0 0 4.6 12.6Z'],
  ranks: ['circle cx=8 cy=3.6 r=1.7', 'circle cx=3.6 cy=12 r=1.7', 'circle cx=12.4 cy=12 r=1.7', 'path d=M7.2 5.2 4.4 10.4M8.8 5.2 11.6 10.4M5.4 12H10.6'],
  stacks: ['path d=M2.6 4H9.6M2.6 8H13.4M2.6 12H7.6'],
  profile: ['path d=M2.6 13.2H13.4', 'path d=M3.6 11V8.6M6.5 11V3.4M9.5 11V6M12.4 11V9.4'],
  record: ['circle cx=8 cy=8 r=4'],
  resume: ['path d=M3.4 3.4V12.6M6.4 3.6 12.8 8 6.4 12.4Z'],
  open: ['path d=M7 3.4H3.4V12.6H12.6V9M9.6 2.6H13.4V6.4M13 3 7.6 8.4'],
  download: ['path d=M8 2.6V9.6M5 6.8 8 9.8 11 6.8M3 13H13'],
  dots: ['path d=M3.4 8H3.5M8 8H8.1M12.5 8H12.6'],
  gear: ['circle cx=8 cy=8 r=2.1', 'path d=M8 2V4M8 12V14M2 8H4M12 8H14M3.8 3.8 5.2 5.2M10.8 10.8 12.2 12.2M3.8 12.2 5.2 10.8M10.8 5.2 12.2 3.8'],
  trash: ['path d=M3 4.6H13M6.2 4.4V2.8H9.8V4.4M4.4 4.8 5 13.2H11L11.6 4.8M6.8 7V11M9.2 7V11'],
  pruned: ['circle cx=4.6 cy=11.6 r=1.9', 'circle cx=11.4 cy=11.6 r=1.9', 'path d=M5.6 10 10.6 2.8M10.4 10 5.4 2.8'],
  queued: [CIRCLE(5.6, ' stroke-dasharray=2,2.6')],
  starting: [CIRCLE(5.6, ' opacity=0.35'), 'path d=M8 2.4A5.6 5.6 0 0 1 13.6 8'],
  running: [CIRCLE(5.6, ' opacity=0.45'), CIRCLE(2.9, ' fill=currentColor stroke=none')],
  stalled: [CIRCLE(5.7), 'path d=M8 4.8V8.8M8 11.1V11.2'],
  completed: [CIRCLE(5.7), 'path d=M5.4 8.2 7.2 10 10.6 6.2'],
  failed: [CIRCLE(6.4, ' fill=currentColor stroke=none'), 'path class=dd-cut d=M5.8 5.8 10.2 10.2M10.2 5.8 5.8 10.2'],
  canceled: [CIRCLE(5.7), 'path d=M4.1 11.9 11.9 4.1'],
  lost: [CIRCLE(5.7), 'path d=M6.2 6.3A1.8 1.8 0 1 1 8.6 8C8.2 8.2 8 8.5 8 9M8 11.1V11.2'],
};
const SAME_SHAPE: Record<string, string> = { preparing: 'starting', canceling: 'canceled' };
const NAMESPACE = 'http://www.w3.org/2000/svg';

/** Return the icon of that name (a state's name gives the state's shape); screen readers skip it. */
export function icon(name: string, size = 16, className = ''): SVGSVGElement {
  const svg = document.createElementNS(NAMESPACE, 'svg');
  const attributes: Record<string, string> = {
    width: String(size), height: String(size), viewBox: '0 0 16 16', fill: 'none', stroke: 'currentColor',
    'stroke-width': '1.5', 'stroke-linecap': 'round', 'stroke-linejoin': 'round', 'aria-hidden': 'true', class: className,
  };
  for (const [key, value] of Object.entries(attributes)) svg.setAttribute(key, value);
  svg.append(...(SHAPES[SAME_SHAPE[name] ?? name] ?? []).map(shape));
  return svg;
}

function shape(text: string): SVGElement {
  const [head = '', path] = text.split(/ ?\bd=/);
  const [tag = 'path', ...pairs] = head.split(' ');
  const element = document.createElementNS(NAMESPACE, tag) as SVGElement;
  for (const pair of pairs) {
    const [name = '', value = ''] = pair.split('=');
    if (name) element.setAttribute(name, value);
  }
  if (path !== undefined) element.setAttribute('d', path);
  return element;
}
