/** Name, time limit, and the options that few jobs need. */
import { fill, h, setText } from '../ui/dom';
import { __ } from '../ui/trans';
import { capital, duration, TRACKERS } from '../ui/format';
import { Fold, Problem, Segments, Select, TextField, checkbox, freshId, labelled } from './controls';
import { Environment } from './environment';
import type { OptionField, OptionValue, Part, Store } from './state';

/** Seconds that are offered for a time limit; 0 is no limit. */
const STOP_AFTER = [0, 300, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800];

export class Details implements Part {
  readonly element: HTMLElement;
  readonly #name: TextField;
  readonly #stop: Select;
  readonly #problems: [Problem, Problem];

  constructor(private readonly store: Store) {
    this.#problems = [new Problem(store, ['name']), new Problem(store, ['max_run_duration_seconds'])];
    const [name, stop] = [freshId('name'), freshId('stop')];
    this.#name = new TextField({ 'aria-labelledby': name, maxlength: '120' }, (value) => store.set({ name: value }));
    this.#stop = new Select(stop, (value) => store.set({ max_run_duration_seconds: Number(value) }));
    this.element = h('section', { class: 'dd-form-part dd-name-and-stop' },
      labelled(__('Name'), name, this.#name.element, this.#problems[0].element),
      labelled(__('Stop after'), stop, this.#stop.element, this.#problems[1].element),
    );
  }

  update(): void {
    for (const problem of this.#problems) problem.update();
    const stop = this.store.get('max_run_duration_seconds');
    const offered = STOP_AFTER.map((seconds) => ({ value: String(seconds), text: seconds ? duration(seconds) : __('No limit'), reason: '' }));
    if (!offered.some(({ value }) => value === String(stop))) offered.push({ value: String(stop), text: duration(stop), reason: '' });
    this.#stop.offer(offered);
    this.#stop.show(String(stop));
    this.#name.show(this.store.get('name'));
  }
}

/** Default number of trials of a sweep; must match `studies/sweeps.py`. */
export const TRIALS = 20;

/** What a sweep varies, and how: with that, Submit starts many jobs and finds the best. */
export class SweepOptions implements Part {
  readonly element: HTMLElement;
  readonly #fold: Fold;
  readonly #problem: Problem;
  readonly #varied: TextField;
  readonly #metric: TextField;
  readonly #which = note('');
  readonly #numbers: Record<'trials' | 'parallel', TextField>;

  constructor(private readonly store: Store) {
    this.#problem = new Problem(store, ['sweep']);
    const [varied, metric, trials, parallel] = [freshId('varied'), freshId('metric'), freshId('trials'), freshId('parallel')];
    this.#varied = new TextField({ 'aria-labelledby': varied, placeholder: 'lr=loguniform(1e-4,1e-1) width=64,128', class: 'dd-mono' }, (text) => store.set({ sweep: text.trim() }));
    this.#metric = new TextField({ 'aria-labelledby': metric, placeholder: 'loss' }, (text) => store.set({ metric: text.trim() }));
    this.#numbers = { trials: this.#number('trials', trials, TRIALS), parallel: this.#number('parallel', parallel, 1) };
    this.#fold = new Fold(__('Sweep'), null,
      h('div', { class: 'dd-more-row' }, labelled(__('Values to try'), varied, this.#varied.element, this.#which, note(__('Each trial is one job with its own values: drawn from uniform, loguniform or integers(low,high), or from a list.')), this.#problem.element)),
      h('div', { class: 'dd-more-row' }, h('div', { class: 'dd-settings' },
        labelled(__('Trials'), trials, this.#numbers.trials.element),
        labelled(__('Trials at once'), parallel, this.#numbers.parallel.element),
        labelled(__('Compare trials by'), metric, this.#metric.element))));
    this.element = this.#fold.element;
    this.element.hidden = !store.canSweep;
  }

  update(): void {
    const [varied, wrong] = [this.store.get('sweep'), this.#problem.update()];
    const names = [...varied.matchAll(/(?:^|\s)([A-Za-z_]\w*)=/g)].map(([, name = '']) => name).join(', ');
    this.#fold.update(varied ? __('%1 trials, varying %2', this.store.get('trials') || TRIALS, names) : __('try many values and find the best'), varied !== '', wrong);
    const name = this.store.get('title').function;
    setText(this.#which, name ? __('Arguments of %1.', name) : __('Variables or command-line flags to vary.'));
    this.#varied.show(varied);
    this.#metric.show(this.store.get('metric'));
    for (const name of ['trials', 'parallel'] as const) this.#numbers[name].show(String(this.store.get(name) || ''));
  }

  #number(name: 'trials' | 'parallel', id: string, usual: number): TextField {
    const field = new TextField({ 'aria-labelledby': id, inputmode: 'numeric', placeholder: String(usual) }, (text) => {
      const count = Number(text);
      const kept = Number.isInteger(count) && count >= 0 && count <= MOST_TRIALS ? count : this.store.get(name);
      field.input.value = String(kept || '');
      this.store.set({ [name]: kept });
    });
    return field;
  }
}

/** As `form/schema.py` has it. */
const MOST_TRIALS = 10_000;

/** Seconds that are offered for a hang; 0 is never. */
const HANGS = [0, 120, 300, 600, 1800, 3600];

export class MoreOptions implements Part {
  readonly element: HTMLElement;
  readonly #fold: Fold;
  readonly #gpu: Segments;
  readonly #environment: Environment;
  readonly #options: OptionFields;
  readonly #settings: OptionFields;
  readonly #problems: [Problem, Problem, Problem, Problem, Problem, Problem];
  readonly #restarts: TextField;
  readonly #hang: Select;
  readonly #fromOutput: ReturnType<typeof checkbox>;
  readonly #undefined: ReturnType<typeof checkbox>;
  readonly #track: Select;

  constructor(private readonly store: Store) {
    this.#fromOutput = checkbox(__('Read metrics from printed output'), (on) => store.set({ metrics_from_output: on }));
    this.#undefined = checkbox(__('Start although a name is not defined'), (on) => store.set({ allow_undefined: on }));
    this.#problems = [new Problem(store, ['environment_variables']), new Problem(store, ['use_gpu']), new Problem(store, ['max_restarts']), new Problem(store, ['hang_timeout_seconds']), new Problem(store, store.get('choices').options.map(({ name }) => name)), new Problem(store, ['track'])];
    const [gpu, restarts, hang, track] = [freshId('gpu'), freshId('restarts'), freshId('hang'), freshId('track')];
    this.#track = new Select(track, (value) => store.set({ track: value }));
    this.#restarts = new TextField({ 'aria-labelledby': restarts, inputmode: 'numeric', placeholder: '0' }, (text) => this.#setRestarts(text));
    this.#hang = new Select(hang, (value) => store.set({ hang_timeout_seconds: Number(value) }));
    const choices = [['', __('Automatic')], ['yes', __('Yes')], ['no', __('No')]].map(([value = '', text = '']) => ({ value, text, reason: '' }));
    this.#gpu = new Segments(gpu, choices, (value) => store.set({ use_gpu: value === 'yes' || value === 'no' ? value : '' }));
    this.#environment = new Environment(store);
    this.#options = new OptionFields(store, 'other_options', '');
    this.#settings = new OptionFields(store, 'backend_options', __('default'));
    this.#fold = new Fold(__('More options'), null,
      this.#environment.element,
      this.#problems[0].element,
      h('div', { class: 'dd-more-row' },
        labelled(__('Restarts after a failure'), restarts, this.#restarts.element, note(__('Restart all ranks up to this many times. Files in checkpoint_dir() are kept.')), this.#problems[2].element),
        labelled(__('Stop after no progress for'), hang, this.#hang.element, note(__('Stack traces of all ranks are saved first.')), this.#problems[3].element)),
      h('div', { class: 'dd-more-row' }, this.#options.element),
      this.#problems[4].element,
      h('div', { class: 'dd-more-row' }, this.#settings.element, labelled(__('Use GPU'), gpu, this.#gpu.element, this.#problems[1].element)),
      h('div', { class: 'dd-more-row' },
        labelled(__('Printed metrics'), freshId('printed'), this.#fromOutput.element, note(__('A printed loss becomes a curve until the ranks report metrics with log() or a framework.'))),
        labelled(__('Track with'), track, this.#track.element, note(__('One run for all ranks, with parameters, metrics and outputs.')), this.#problems[5].element)),
      h('div', { class: 'dd-more-row' }, labelled(__('Undefined names'), freshId('undefined'), this.#undefined.element)),
    );
    this.element = this.#fold.element;
  }

  update(): void {
    const wrong = this.#problems.map((problem) => problem.update());
    this.#fold.update(__('environment variables, restarts, backend settings, GPU use'), false, wrong.includes(true));
    this.#gpu.show(this.store.get('use_gpu'));
    this.#fromOutput.input.checked = this.store.get('metrics_from_output');
    this.#undefined.input.checked = this.store.get('allow_undefined');
    this.#drawTrack(this.store.get('track'));
    this.#restarts.show(String(this.store.get('max_restarts') || ''));
    this.#drawHang(this.store.get('hang_timeout_seconds'));
    this.#environment.update();
    const { backends, options } = this.store.get('choices');
    this.#options.update(options);
    this.#settings.update(backends.find(({ label }) => label === this.store.get('distributed_backend'))?.options ?? []);
  }

  #setRestarts(text: string): void {
    const count = Number(text);
    const kept = Number.isInteger(count) ? Math.min(this.store.get('choices').max_restarts_allowed, Math.max(0, count)) : this.store.get('max_restarts');
    this.#restarts.input.value = String(kept || '');
    this.store.set({ max_restarts: kept });
  }

  /** Several at once can be written in the cell's line; they are offered then. */
  #drawTrack(track: string): void {
    const offered = [['', __('As in your settings')], ...TRACKERS, ['off', __('Nothing')]];
    const several = offered.some(([value]) => value === track) ? [] : [[track, track.split(',').map((name) => TRACKERS.find(([value]) => value === name)?.[1] ?? name).join(', ')]];
    this.#track.offer([...offered, ...several].map(([value = '', text = '']) => ({ value, text, reason: '' })));
    this.#track.show(track);
  }

  #drawHang(seconds: number): void {
    const offered = [...HANGS, ...(HANGS.includes(seconds) ? [] : [seconds])];
    this.#hang.offer(offered.map((one) => ({ value: String(one), text: one ? duration(one) : __('Never'), reason: '' })));
    this.#hang.show(String(seconds));
  }
}

/** One field for each option that jobs or a backend declare, without more ado. */
class OptionFields {
  readonly element = h('div', { class: 'dd-settings' });
  readonly #shows = new Map<string, (value: OptionValue) => void>();

  constructor(private readonly store: Store, private readonly chosen: 'other_options' | 'backend_options', private readonly placeholder: string) {}

  update(options: readonly OptionField[]): void {
    fill(this.element, JSON.stringify(options), () => options.map((option) => this.#field(option)));
    const values = this.store.get(this.chosen);
    for (const { name, default: usual } of options) this.#shows.get(name)?.(values[name] ?? usual);
  }

  #field(option: OptionField): HTMLElement {
    const { name, help } = option;
    const [id, label] = [freshId('option'), option.label || spoken(name)];
    const set = (value: OptionValue): void => this.store.set({ [this.chosen]: { ...this.store.get(this.chosen), [name]: value } });
    const { element, show } = control(option, id, label, this.placeholder, set);
    this.#shows.set(name, show);
    return labelled(label, id, element, note(help && `${capital(help)}.`));
  }
}

function note(text: string): HTMLElement {
  return h('div', { class: 'dd-form-note' }, text);
}

/** Return an option's name as words, its unit in brackets: "Cycle time (ms)". */
function spoken(name: string): string {
  const words = name.replace(/_(mb|gb|ms|s)$/, (_, unit: string) => ` (${unit.endsWith('b') ? unit.toUpperCase() : unit})`);
  return capital(words.replaceAll('_', ' '));
}

interface Control {
  element: HTMLElement;
  show: (value: OptionValue) => void;
}

function control({ kind, choices }: OptionField, id: string, label: string, placeholder: string, set: (value: OptionValue) => void): Control {
  if (kind === 'choice') {
    const select = new Select(id, set);
    select.offer(choices.map((text) => ({ value: text, text, reason: '' })));
    return { element: select.element, show: (value) => select.show(String(value)) };
  }
  if (kind === 'flag') {
    const box = checkbox(label, set);
    return { element: box.element, show: (value) => void (box.input.checked = value === true) };
  }
  const number = kind === 'number';
  const field = new TextField({ 'aria-labelledby': id, inputmode: number ? 'decimal' : 'text', placeholder }, (text) => {
    if (!number) set(text.trim() || null);
    else set(text.trim() && Number.isFinite(Number(text)) ? Number(text) : null);
  });
  return { element: field.element, show: (value) => field.show(value === null ? '' : String(value)) };
}
