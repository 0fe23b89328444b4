"""A text without a catalogue reads as JupyterLab's own translator would write it; with one, JupyterLab writes it."""

import json

import pytest

from tests.front_end import ROOT, bundle, evaluate


@pytest.fixture(scope="module")
def translated(tmp_path_factory):
    """Return ``run(calls)``: what each ``[name, *values]`` gives here, in JupyterLab, and here with its translator."""
    folder = tmp_path_factory.mktemp("trans")
    entry = folder / "entry.ts"
    gettext = ROOT / "node_modules/@jupyterlab/translation/lib/gettext.js"
    entry.write_text(f"export * from '{ROOT / 'src/ui/trans.ts'}';\nexport {{ Gettext }} from '{gettext}';\n")
    # JupyterLab's way to its server, which needs a browser, is not part of the translator.
    server = folder / "server.js"
    server.write_text("export const ServerConnection = {};")
    bundled = bundle(entry, folder / "trans.mjs", f"--alias:@jupyterlab/services={server}")

    def run(calls):
        return evaluate(f"""import * as trans from {json.dumps(str(bundled))};
            globalThis.document = {{ documentElement: {{ getAttribute: () => 'en' }} }};
            const english = new trans.Gettext();
            const texts = new trans.Gettext({{ domain: 'd', locale: 'ja-JP' }});
            texts.loadJSON({{ '': {{ language: 'ja-JP', pluralForms: 'nplurals=1; plural=0;' }},
              '%1 job': ['%1 件', '%1 件'], 'Cancel %1?': ['%1 を中止?'] }}, 'd');
            const calls = {json.dumps(calls)};
            const made = (from) => calls.map(([name, ...given]) => from[name](...given));
            const here = made(trans), there = made(english);
            trans.setBundle(texts);
            console.log(JSON.stringify([here, there, made(trans)]));""")

    return run


def test_english_as_jupyterlab_writes_it(translated):
    calls = [
        ["__", "Jobs"],
        ["__", "%2 of %1, %1 first", 3, "two"],
        ["__", "100 %% of %1", "x"],
        ["__", "Cancel %1?", "%1 & $& %%"],
        ["_n", "%1 job", "%1 jobs", 1],
        ["_n", "%1 job", "%1 jobs", 0],
        ["_n", "%2 of %1 node", "%2 of %1 nodes", 4, 2],
        ["_n", "one job", "%1 jobs", 1],
    ]
    here, there, _ = translated(calls)
    assert here == there
    assert here == [
        "Jobs", "two of 3, 3 first", "100 % of x", "Cancel %1 & $& %%?", "1 job", "0 jobs", "2 of 4 nodes", "one job",
    ]  # fmt: skip


def test_the_catalogue_of_the_page(translated):
    _, _, translated_ = translated([["__", "Cancel %1?", "x"], ["_n", "%1 job", "%1 jobs", 3], ["__", "Jobs"]])
    assert translated_ == ["x を中止?", "3 件", "Jobs"]
