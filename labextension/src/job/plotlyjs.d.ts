/** The part of plotly.js that is used; its own package brings no types. */
declare module 'plotly.js-basic-dist-min' {
  export interface PlotlyElement extends HTMLElement {
    on(event: string, callback: (change: Record<string, unknown>) => void): void;
  }
  interface Plotly {
    react(element: HTMLElement, data: unknown[], layout: unknown, config?: unknown): Promise<PlotlyElement>;
    purge(element: HTMLElement): void;
    Plots: { resize(element: HTMLElement): Promise<void> };
  }
  const plotly: Plotly;
  export default plotly;
}
