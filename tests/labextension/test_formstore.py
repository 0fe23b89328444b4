"""The form's state on a page, run by Node: what is submitted is what stands in the form, and only once."""

import json

import pytest

from tests.front_end import bundle, evaluate

#: Answers come when they are let go; each says what it was asked.
PAGE = """
const waiting = [], submitted = [], asked = [];
const answer = ({ values = { process_count_per_node: 2, data: [] } }) => ({
  values, checks: {}, environment: [], problems: {},
  options: { processes: values.process_count_per_node } });
const text = {
  about: () => ({ code: 'x' }),
  ask: (question) => new Promise((resolve) => {
    asked.push(question);
    waiting.push(() => resolve(answer(question)));
  }),
  submit: async (form) => { submitted.push(form.options.processes); return { level: 'info' }; },
};
const rest = () => new Promise((resolve) => setTimeout(resolve, 5));
const answered = async () => { waiting.shift()(); await rest(); };
// A form that asks again and again shall fail the test, not keep it.
const allAnswered = async () => { for (let left = 20; waiting.length && left; left -= 1) await answered(); };
const store = new ui.FormStore(text, answer({}), () => undefined);
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return ``run(code)``: what a program prints as JSON in which ``store`` is a form of two processes."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "server.js").write_text("export const ServerConnection = {}, URLExt = {};")
    aliases = [f"--alias:@jupyterlab/{name}={folder / 'server.js'}" for name in ("services", "coreutils")]
    bundled = bundle("form/store", folder / "store.mjs", *aliases)
    return lambda code: evaluate(f"import * as ui from {json.dumps(str(bundled))};{PAGE}{code}")


def test_a_question_that_crosses_a_submit_does_not_let_an_older_form_start(page):
    assert page("""
        store.set({ process_count_per_node: 1 });
        store.send({ type: 'submit' });
        store.send({ type: 'refresh' });   // as a page does by itself
        await answered();                  // that of the submit, which is passed over
        const early = [...submitted];
        await allAnswered();
        console.log(JSON.stringify([early, submitted]));
    """) == [[], [1]]


def test_two_clicks_on_submit_start_one_job(page):
    assert page("""
        store.send({ type: 'submit' });
        store.send({ type: 'submit' });
        await allAnswered();
        console.log(JSON.stringify(submitted));
    """) == [2]


def test_a_form_that_is_closed_meanwhile_starts_nothing(page):
    assert (
        page("""
        store.send({ type: 'submit' });
        store.dispose();
        await allAnswered();
        console.log(JSON.stringify(submitted));
    """)
        == []
    )


def test_advice_is_taken_once(page):
    assert page("""
        store.send({ type: 'apply', code: 'one-per-gpu' });
        store.send({ type: 'refresh' });
        await allAnswered();
        console.log(JSON.stringify(asked.map(({ apply }) => apply)));
    """) == ["one-per-gpu", None]
