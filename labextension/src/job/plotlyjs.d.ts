/** The part of plotly.js that is used; its own package brings no types. */
declare module 'plotly.js-basic-dist-min' {
  interface Plotly {
    react(element: HTMLElement, data: unknown[], layout: unknown, config?: unknown): Promise<unknown>;
    purge(element: HTMLElement): void;
    Plots: { resize(element: HTMLElement): Promise<void> };
  }
  const plotly: Plotly;
  export default plotly;
}
