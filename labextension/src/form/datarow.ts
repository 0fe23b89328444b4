/** One data source of the form as a row: its name, its location and how nodes access it. */
import { h, onClick, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { Select, TextField, checkbox, freshId } from './controls';
import type { DataRow } from './state';

const SIGNED = /[?&](?:sig|se|sp|sv|x-(?:amz|goog)-[a-z-]+)=/i;
const PARAMETER = /^(?:shard(?:=(?:1|true|yes))?|mode=(?:mount|download))$/;
export const PLACEHOLDER = 'blob://account/container/prefix';

/** Mask the signature of a location, if it has one: signatures are secret, and the server rejects them. */
export const maskSignature = (location: string): string => SIGNED.test(location) ? `${location.split('?', 1)[0]}?sig=•••` : location;

/** Move `?shard` and `?mode=` from the location of a row to the fields beside it. */
export function normalizeRow(row: DataRow): DataRow {
  const [location = '', query = ''] = maskSignature(row.address).split('?', 2);
  const parameters = query.split('&');
  if (!isListed(location) || !parameters.every((parameter) => PARAMETER.test(parameter))) return { ...row, address: maskSignature(row.address) };
  const mode = parameters.includes('mode=mount') ? 'mount' : parameters.includes('mode=download') ? 'download' : row.mode;
  return { ...row, address: location, mode, shard: row.shard || parameters.some((parameter) => parameter.startsWith('shard')) };
}

/** Return whether a location is in an object store, where each node can read its own shard. */
const isListed = (location: string): boolean => /^(?:blob|s3|gs):\/\//.test(location.trim());

export class DataRowView {
  readonly element: HTMLElement;
  readonly #name: TextField;
  readonly #place: TextField;
  readonly #shard = checkbox(__('Each node gets only its part'), (on) => this.#set({ shard: on }));
  readonly #mode: Select;
  readonly #storeOptions: HTMLElement;
  readonly #modeField: HTMLElement;
  #row: DataRow;

  constructor(row: DataRow, private readonly changed: () => void, remove: () => void) {
    this.#row = row;
    const attributes = { 'aria-label': __('Name of the data'), placeholder: 'data', maxlength: '40', class: 'dd-mono' };
    this.#name = new TextField(attributes, (name) => this.#set({ name: name.trim() }));
    this.#place = new TextField({ 'aria-label': __('Location of the data'), placeholder: PLACEHOLDER, class: 'dd-mono' }, (location) => this.#set({ address: location.trim() }));
    const mode = freshId('mode');
    this.#mode = new Select(mode, (value) => this.#set({ mode: value === 'mount' ? 'mount' : 'download' }));
    this.#mode.offer([
      { value: 'download', text: __('Download before the start'), reason: '' },
      { value: 'mount', text: __('Mount: read while training'), reason: '' },
    ]);
    this.#modeField = h('div', { class: 'dd-data-mode' }, h('span', { hidden: true, id: mode }, __('How the nodes get the data')), this.#mode.element);
    this.#storeOptions = h('div', { class: 'dd-data-how dd-s12' }, this.#shard.element, this.#modeField);
    const button = h('button', { type: 'button', class: 'dd-btn dd-quiet dd-icon', title: __('Remove this data'), 'aria-label': __('Remove this data') }, icon('close', 14));
    this.element = h('div', { class: 'dd-data-row', role: 'group', 'aria-label': __('Data') },
      h('div', { class: 'dd-data-line' }, this.#name.element, h('span', { class: 'dd-sub', 'aria-hidden': 'true' }, '='), this.#place.element, onClick(button, remove)),
      this.#storeOptions);
  }

  /** The current row, normalized. */
  get row(): DataRow {
    return this.#row;
  }

  focus(): void {
    (this.#name.input.value ? this.#place : this.#name).input.focus();
  }

  /** Show a row, without overwriting a field while the user types in it. */
  show(row: DataRow, mounts: boolean): void {
    this.#row = row;
    this.#name.show(row.name);
    this.#place.show(row.address);
    this.#shard.input.checked = row.shard;
    this.#mode.show(row.mode);
    show(this.#storeOptions, isListed(row.address));
    show(this.#modeField, mounts || row.mode === 'mount');
  }

  #set(changes: Partial<DataRow>): void {
    this.#row = normalizeRow({ ...this.#row, ...changes });
    this.#place.input.value = this.#row.address;
    this.changed();
  }
}
