/** The packages that every node installs before the ranks start: names for pip and conda, and a file of requirements. */
import { h } from '../ui/dom';
import { __ } from '../ui/trans';
import { Fold, Problem, TextField, freshId, labelled } from './controls';
import type { Part, Store } from './state';

export class Packages implements Part {
  readonly element: HTMLElement;
  readonly #fold: Fold;
  readonly #pip: TextField;
  readonly #conda: TextField;
  readonly #requirements: TextField;
  readonly #problem: Problem;

  constructor(private readonly store: Store) {
    const [pip, conda, requirements] = [freshId('pip'), freshId('conda'), freshId('requirements')];
    const field = (id: string, placeholder: string, changed: (text: string) => void): TextField =>
      new TextField({ 'aria-labelledby': id, placeholder, class: 'dd-mono' }, changed);
    this.#pip = field(pip, 'numpy>=2 webdataset==1.0.2', (text) => store.set({ pip_packages: words(text) }));
    this.#conda = field(conda, 'conda-forge::ffmpeg=7', (text) => store.set({ conda_packages: words(text) }));
    this.#requirements = field(requirements, 'requirements.txt', (text) => store.set({ requirements: text.trim() }));
    this.#problem = new Problem(store, ['pip_packages', 'conda_packages', 'requirements']);
    this.#fold = new Fold(__('Packages'), null,
      labelled(__('pip packages'), pip, this.#pip.element),
      labelled(__('conda packages'), conda, this.#conda.element),
      labelled(__('Requirements'), requirements, this.#requirements.element),
      this.#problem.element,
      h('div', { class: 'dd-form-note' }, __('Every node installs them before training, on top of its environment, and caches them for the next job. Requirements are a requirements.txt, a pylock.toml or a script that declares its dependencies.')));
    this.element = h('div', { class: 'dd-packages' }, this.#fold.element);
  }

  update(): void {
    const [pip, conda, requirements] = [this.store.get('pip_packages'), this.store.get('conda_packages'), this.store.get('requirements')];
    this.#pip.show(pip.join(' '));
    this.#conda.show(conda.join(' '));
    this.#requirements.show(requirements);
    const named = [...pip, ...conda, requirements.endsWith('\n') ? __('Requirements') : requirements].filter(Boolean).join(', ');
    this.#fold.update(named || __('as installed on the cluster'), Boolean(named), this.#problem.update());
  }
}

function words(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}
