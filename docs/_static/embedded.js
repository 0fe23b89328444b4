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

  const json = (value, status = 200) => new Response(JSON.stringify(value), { status });
  const refused = () => json({ message: 'This page has no server.', hint: 'Open the notebook in JupyterLab.' }, 501);

  /** Answers the subscriptions of a job's view from what was kept. */
  class KeptSocket {
    constructor(id, told) {
      Object.assign(this, { id, told, readyState: 1 });
      queueMicrotask(() => this.onopen?.());
      this.beat = setInterval(() => this.say({ type: 'alive', now: 0 }), 5000);
    }

    send(text) {
      const { number, job } = JSON.parse(text);
      const wanted = job[this.id] ?? { curves: [] };
      this.say({ type: 'hello', number, server_id: 'kept', now: 0 });
      this.say(this.told.job);
      if (wanted.log && !wanted.log.mark) this.say(this.told.log);
      for (const { metric, mode } of wanted.curves) {
        const shown = metric || this.told.default_metric;
        const curve = this.told.curves.find((message) => message.metric === shown && message.mode === mode);
        if (curve) this.say({ ...curve, requested: metric });
      }
      if (wanted.resources && this.told.resources) this.say(this.told.resources);
    }

    close() {
      clearInterval(this.beat);
    }

    say(message) {
      queueMicrotask(() => this.onmessage?.({ data: JSON.stringify(message) }));
    }
  }

  const showJob = (element, id, told) => {
    // What only a server does is not offered.
    Object.assign(told.job.card, { can_rerun: false, can_resume: false });
    const answer = async (address) => {
      const { pathname, searchParams } = new URL(address, 'http://kept');
      const stacks = pathname.endsWith('/stacks') && told.stacks[searchParams.get('number')];
      if (stacks) return json(stacks);
      return pathname.endsWith('/log') ? json({ rows: [], open: [], first: 0, total: told.log.total, errors: {} }) : refused();
    };
    const api = new window.distdlViews.Api(answer, 'http://kept');
    window.distdlViews.job(element, id, api, () => new KeptSocket(id, told), async () => refused());
  };

  /** A launch form: its state is the same whatever is asked. */
  const showForm = (element, state) => {
    const text = { canSweep: true, about: () => ({}), ask: async () => state, submit: async () => ({}) };
    element.replaceChildren(new window.distdlViews.FormFrame(text, { clusters: {} }).element);
  };

  let views;

  const show = async (element) => {
    const { job, form } = element.dataset;
    views ??= load('views');
    await Promise.all([views, load(job ?? form)]);
    const shown = document.createElement('div');
    shown.className = 'distdl-kept';
    // Nothing in a form has an effect here.
    shown.inert = !job;
    element.replaceChildren(shown);
    if (job) showJob(shown, job, window.distdlJobs[job]);
    else showForm(shown, window.distdlForms[form]);
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
