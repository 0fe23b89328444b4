/** Where the job's data comes from and where its outputs go: rows that are added and removed, and one place. */
import { h, setText } from '../ui/dom';
import { __ } from '../ui/trans';
import { Fold, Problem, TextField, freshId, labelled, link } from './controls';
import { DataRowView, PLACEHOLDER, maskSignature } from './datarow';
import type { Part, Store } from './state';

export class Data implements Part {
  readonly element: HTMLElement;
  readonly #data: Fold;
  readonly #delivered: Fold;
  readonly #list = h('div', { class: 'dd-data-rows' });
  readonly #add: HTMLButtonElement;
  readonly #help = h('div', { class: 'dd-form-note' });
  readonly #outputs: TextField;
  readonly #problems: [Problem, Problem];
  #rows: DataRowView[] = [];

  constructor(private readonly store: Store) {
    this.#problems = [new Problem(store, ['data']), new Problem(store, ['outputs'])];
    const outputs = freshId('outputs');
    this.#add = link(__('Add data'), () => this.#append(), { class: 'dd-link dd-s12 dd-nw' });
    this.#outputs = new TextField({ 'aria-labelledby': outputs, placeholder: PLACEHOLDER, class: 'dd-mono' }, (place) => this.#deliver(place));
    this.#data = new Fold(__('Data'), this.#add,
      h('div', { class: 'dd-labelled', role: 'group', 'aria-label': __('Data') }, this.#list, this.#problems[0].element, this.#help));
    this.#delivered = new Fold(__('Outputs'), null,
      labelled(__('Outputs to'), outputs, this.#outputs.element, this.#problems[1].element,
        h('div', { class: 'dd-form-note' }, __('Optional. When the job ends, outputs/ and the results are also copied to Azure Blob, into a folder of this job.'))));
    this.element = h('div', { class: 'dd-data' }, this.#data.element, this.#delivered.element);
  }

  update(): void {
    const rows = this.store.get('data');
    if (rows.length !== this.#rows.length) this.#rebuild();
    rows.forEach((row, at) => this.#rows[at]?.show(row, this.store.get('mounts')));
    setText(this.#help, rows.length ? this.#example() : __('Files that every node gets before training: from an object store, a web server or a path.'));
    const place = this.store.get('outputs');
    this.#outputs.show(place);
    const [wrongData, wrongPlace] = this.#problems.map((problem) => problem.update());
    const names = rows.map(({ name, address }) => name || address).filter(Boolean).join(', ');
    this.#data.update(names || __('none (captured variables are sent automatically)'), rows.length > 0, wrongData);
    this.#delivered.update(place || __('kept with the job'), Boolean(place), wrongPlace);
  }

  #example(): string {
    const name = this.store.get('data').map((row) => row.name).find(Boolean) ?? 'data';
    return __('Locations: %1, shared:/mnt/data (a path that every node can read) or a local path such as ./data. In the code, data_path("%2") of distdl_jupyter returns the folder.', `${PLACEHOLDER}, s3://bucket/prefix, gs://bucket/prefix, https://host/file`, name);
  }

  #rebuild(): void {
    this.#rows = this.store.get('data').map((row) => this.#view(row));
    this.#list.replaceChildren(...this.#rows.map(({ element }) => element));
  }

  #view(row: DataRowView['row']): DataRowView {
    const view: DataRowView = new DataRowView(row, () => this.#send(), () => this.#remove(view));
    return view;
  }

  #append(): void {
    this.#data.choose(true);
    const row = this.#view({ name: '', address: '', shard: false, mode: 'download' });
    this.#rows.push(row);
    this.#list.append(row.element);
    this.#send();
    row.focus();
  }

  #remove(row: DataRowView): void {
    const at = this.#rows.indexOf(row);
    this.#rows.splice(at, 1);
    row.element.remove();
    this.#send();
    const next = this.#rows[Math.min(at, this.#rows.length - 1)];
    if (next) next.focus();
    else this.#add.focus();
  }

  #send(): void {
    this.store.set({ data: this.#rows.map(({ row }) => row) });
  }

  #deliver(place: string): void {
    this.#outputs.input.value = maskSignature(place.trim());
    this.store.set({ outputs: this.#outputs.input.value });
  }
}
