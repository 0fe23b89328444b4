/** One source of data in a row: its name, its place and how it is taken. */
import { h, onClick, show } from '../ui/dom';
import { icon } from '../ui/icons';
import { __ } from '../ui/trans';
import { Select, TextField, checkbox, freshId } from './controls';
import type { DataRow } from './state';

const SIGNED = /[?&](?:sig|se|sp|sv|x-(?:amz|goog)-[a-z-]+)=/i;
const WORD = /^(?:shard(?:=(?:1|true|yes))?|mode=(?:mount|download))$/;
export const PLACE = 'blob://account/container/prefix';

/** Return a place whose signature, if it has one, is masked: it is a secret, and refused. */
export const unsigned = (place: string): string => SIGNED.test(place) ? `${place.split('?', 1)[0]}?sig=•••` : place;

/** Return a row with `?shard` and `?mode=` moved from its location to the fields beside it. */
export function settled(row: DataRow): DataRow {
  const [where = '', words = ''] = unsigned(row.place).split('?', 2);
  const each = words.split('&');
  if (!isListed(where) || !each.every((word) => WORD.test(word))) return { ...row, place: unsigned(row.place) };
  const mode = each.includes('mode=mount') ? 'mount' : each.includes('mode=download') ? 'download' : row.mode;
  return { ...row, place: where, mode, shard: row.shard || each.some((word) => word.startsWith('shard')) };
}

/** Return whether a location is in a store that lists folders, so that nodes can each read a shard. */
const isListed = (place: string): boolean => /^(?:blob|s3|gs):\/\//.test(place.trim());

export class DataRowView {
  readonly element: HTMLElement;
  readonly #name: TextField;
  readonly #place: TextField;
  readonly #shard = checkbox(__('Each node gets only its part'), (on) => this.#set({ shard: on }));
  readonly #mode: Select;
  readonly #how: HTMLElement;
  readonly #way: HTMLElement;
  #row: DataRow;

  constructor(row: DataRow, private readonly changed: () => void, remove: () => void) {
    this.#row = row;
    const named = { 'aria-label': __('Name of the data'), placeholder: 'data', maxlength: '40', class: 'dd-mono' };
    this.#name = new TextField(named, (name) => this.#set({ name: name.trim() }));
    this.#place = new TextField({ 'aria-label': __('Location of the data'), placeholder: PLACE, class: 'dd-mono' }, (place) => this.#set({ place: place.trim() }));
    const mode = freshId('mode');
    this.#mode = new Select(mode, (value) => this.#set({ mode: value === 'mount' ? 'mount' : 'download' }));
    this.#mode.offer([
      { value: 'download', text: __('Download before the start'), reason: '' },
      { value: 'mount', text: __('Mount: read while training'), reason: '' },
    ]);
    this.#way = h('div', { class: 'dd-data-mode' }, h('span', { hidden: true, id: mode }, __('How the nodes get the data')), this.#mode.element);
    this.#how = h('div', { class: 'dd-data-how dd-s12' }, this.#shard.element, this.#way);
    const button = h('button', { type: 'button', class: 'dd-btn dd-quiet dd-icon', title: __('Remove this data'), 'aria-label': __('Remove this data') }, icon('close', 14));
    this.element = h('div', { class: 'dd-data-row', role: 'group', 'aria-label': __('Data') },
      h('div', { class: 'dd-data-line' }, this.#name.element, h('span', { class: 'dd-sub', 'aria-hidden': 'true' }, '='), this.#place.element, onClick(button, remove)),
      this.#how);
  }

  /** The row as it was last settled. */
  get row(): DataRow {
    return this.#row;
  }

  focus(): void {
    (this.#name.input.value ? this.#place : this.#name).input.focus();
  }

  /** Show a row, but leave a field alone that is being typed in. */
  show(row: DataRow, mounts: boolean): void {
    this.#row = row;
    this.#name.show(row.name);
    this.#place.show(row.place);
    this.#shard.input.checked = row.shard;
    this.#mode.show(row.mode);
    show(this.#how, isListed(row.place));
    show(this.#way, mounts || row.mode === 'mount');
  }

  #set(changes: Partial<DataRow>): void {
    this.#row = settled({ ...this.#row, ...changes });
    this.#place.input.value = this.#row.place;
    this.changed();
  }
}
