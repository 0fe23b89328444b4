/**
 * Jobs and launch forms in pages without a server: the views of JupyterLab, told what was kept when the notebook ran. And a
 * button on each block of code, which copies it.
 *
 * Each `.distdl-job` holds the page that a notebook saves, which stays where no script runs. Its messages are in
 * `jobs/<id>.js`, loaded when the element comes near; so is the state of a `.distdl-form`.
 */
(() => {
  const base = document.currentScript.src.replace(/[^/]*$/, '');

  const load = (name) => new Promise((resolve, reject) => {
    const script = document.createElement('script');
    Object.assign(script, { src: `${base}jobs/${name}.js`, onload: resolve, onerror: reject });
    document.head.append(script);
  });

  /** What a view takes for a widget's model: it answers from what was kept. */
  class Kept {
    #listeners = new Set();

    get() {}
    set() {}
    save_changes() {}
    on(event, callback) {
      if (event === 'msg:custom') this.#listeners.add(callback);
    }
    off(_event, callback) {
      this.#listeners.delete(callback);
    }
    say(message, buffers = []) {
      queueMicrotask(() => this.#listeners.forEach((listener) => listener(message, buffers)));
    }
  }

  /** A launch form: its state is the same whatever is asked. */
  class KeptForm extends Kept {
    constructor(state) {
      super();
      this.state = state;
    }

    send({ type, id }) {
      if (type === 'ask') this.say({ type: 'answer', id, value: this.state });
    }
  }

  class KeptJob extends Kept {
    constructor(id, told) {
      super();
      this.id = id;
      this.told = told;
      // What only a server does is not offered.
      Object.assign(told.job.card, { can_rerun: false, can_resume: false });
    }

    get() {
      return this.id;
    }
    send(message) {
      if (message.type === 'subscribe') this.#tell(message.viewer, message.subscription);
      if (message.type === 'ask') this.say({ type: 'answer', id: message.id, ...this.#answer(message) });
    }

    #tell(viewer, { number, job }) {
      const wanted = job[this.id] ?? { curves: [] };
      const curves = wanted.curves.flatMap(({ metric, mode, log }) =>
        this.told.curves
          .filter((one) => one.metric === (metric || this.told.chosen) && one.mode === mode && one.log === log)
          .map((one) => ({ ...one, asked: metric })));
      const messages = [{ type: 'hello', number, server_id: 'kept', now: 0 }, this.told.job];
      if (wanted.log && !wanted.log.mark) messages.push(this.told.log);
      messages.push(...curves);
      if (wanted.resources && this.told.resources) messages.push(this.told.resources);
      const encoder = new TextEncoder();
      this.say({ type: 'told', viewer, settled: true }, messages.map((one) => encoder.encode(JSON.stringify(one))));
    }

    #answer({ ask, given }) {
      if (ask === 'stacks' && this.told.stacks[given.number]) return { value: this.told.stacks[given.number] };
      if (ask === 'log') return { value: { rows: [], open: [], first: 0, total: this.told.log.total, errors: {} } };
      return { error: { message: 'This page has no server.', hint: 'Open the notebook in JupyterLab.', field: '' } };
    }
  }

  const loaded = {};

  const show = async (element) => {
    const { job, form } = element.dataset;
    const view = job ? 'job' : 'launch';
    loaded[view] ??= load(`${view}-view`);
    await Promise.all([loaded[view], load(job ?? form)]);
    const shown = document.createElement('div');
    shown.className = 'distdl-kept';
    // Nothing in a form has an effect here.
    shown.inert = !job;
    element.replaceChildren(shown);
    const model = job ? new KeptJob(job, window.distdlJobs[job]) : new KeptForm(window.distdlForms[form]);
    window.distdlViews[view].render({ model, el: shown });
  };

  /** The view and the theme of the page agree. */
  const themed = () => document.body.setAttribute('data-jp-theme-light', String(document.documentElement.dataset.theme !== 'dark'));

  /** A button on each block of code. */
  const copyable = (block) => {
    const button = document.createElement('button');
    Object.assign(button, { type: 'button', className: 'distdl-copy', textContent: 'Copy' });
    button.addEventListener('click', async () => {
      await navigator.clipboard.writeText(block.querySelector('pre').innerText.trimEnd());
      button.textContent = 'Copied';
      setTimeout(() => (button.textContent = 'Copy'), 2000);
    });
    block.append(button);
  };

  document.addEventListener('DOMContentLoaded', () => {
    themed();
    document.querySelectorAll('.highlight-python, .highlight-sh, .highlight-ipython3').forEach(copyable);
    new MutationObserver(themed).observe(document.documentElement, { attributeFilter: ['data-theme'] });
    const near = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        near.unobserve(target);
        show(target).catch(console.error);
      }
    }, { rootMargin: '600px' });
    document.querySelectorAll('.distdl-job, .distdl-form').forEach((element) => near.observe(element));
  });
})();
