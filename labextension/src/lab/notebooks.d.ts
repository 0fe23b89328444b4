/** A notebook that is bundled as JSON. */
declare module '*.ipynb' {
  const notebook: { cells: { cell_type: string; outputs?: unknown[]; execution_count?: number | null }[] };
  export default notebook;
}
