"""What Python says, in the language of the page: a sentence is found by its words, whatever was put into it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "labextension"
LOCALE = Path(__file__).parents[2] / "distdl_jupyter" / "locale"


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return ``said(catalogue, texts)``: the texts in the catalogue's language."""
    bundled = tmp_path_factory.mktemp("said") / "said.mjs"
    subprocess.run(
        [HERE / "node_modules/.bin/esbuild", HERE / "src/ui/said.ts", "--bundle", "--format=esm",
         f"--outfile={bundled}"], check=True, capture_output=True,
    )  # fmt: skip
    node = shutil.which("node")
    assert node, "These tests need Node.js, as the build of the front end does."
    program = f"""import {{ Sentences, spoken }} from {json.dumps(str(bundled))};
        import {{ readFileSync }} from 'node:fs';
        const [catalogue, texts] = JSON.parse(readFileSync(0, 'utf8'));
        const sentences = new Sentences(catalogue);
        const say = (text) => sentences.said(text);
        const english = (one) => one.shown && sentences.english(one.shown);
        const shown = texts.map((one) => (typeof one === 'string' ? say(one) : english(one) ?? spoken(one, say)));
        console.log(JSON.stringify(shown));"""

    def run(catalogue, texts):
        done = subprocess.run(
            [node, "--input-type=module", "-e", program],
            input=json.dumps([catalogue, texts]), capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


CATALOGUE = {
    "": {"language": "xx"},
    "No cluster is named %1.": ["CLUSTER <%1>?"],
    "Name one with add_cluster.": ["ADD!"],
    "%1 is not reached: %2.": ["NO WAY TO %1 (%2)"],
    "the key was refused": ["KEY"],
    "%1 of %2 nodes": ["%2 NODES, %1"],
    "%1 min": ["%1 M"],
    "%1 %2 broken (%3)": ["DOWN: %1\uff08%2\uff09/ %3"],
    "It takes 100 %% of %1": ["%1 AT 100 %%"],
    "%1 did not start%2.": ["%1 NOT STARTED%2"],
    "up": ["UP"],
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("No cluster is named lab.", "CLUSTER <lab>?"),
        ("No cluster is named a (b) [c] $1 \\d.", "CLUSTER <a (b) [c] $1 \\d>?"),
        ("No cluster is named lab. Name one with add_cluster.", "CLUSTER <lab>?ADD!"),
        ("Somebody else said this. Name one with add_cluster.", "Somebody else said this. ADD!"),
        ("gpu1 is not reached: the key was refused.", "NO WAY TO gpu1 (KEY)"),
        ("gpu1 is not reached: 2 of 3 nodes.", "NO WAY TO gpu1 (3 NODES, 2)"),
        ("3 min", "3 M"),
        ("gpu min", "gpu min"),
        ("gpu1 is broken (3 min)", "DOWN: gpu1/ 3 M"),
        ("It takes 100 % of it", "AT 100 %"),
        ("It takes 100 % of gpu1", "gpu1 AT 100 %"),
        ("rank 3 did not start.", "rank 3 NOT STARTED"),
        ("up", "UP"),
        ("gpu1: up, 2 of 3 nodes; 3 min.", "gpu1: UP, 3 NODES, 2; 3 M."),
        ("epoch 1 loss 0.5", "epoch 1 loss 0.5"),
        ("", ""),
        ("日本語", "日本語"),
    ],
)
def test_a_text_is_found_by_its_words(said, text, shown):
    assert said(CATALOGUE, [text]) == [shown]


def test_only_sentences_of_a_message_are_put_into_the_language(said):
    message = {
        "name": "up", "code": "up", "rows": [[0, 1.5, 0, "out", "up", 0, {}, []]],
        "jobs": {"rows": [{"name": "up", "says": "2 of 3 nodes"}]}, "open": [],
        "kept": [{"reason": "up", "id": "up"}],
        "checks": [{"says": "No cluster is named lab.", "ok": True, "remedy": None}], "failure": {"traceback": "up"},
    }  # fmt: skip
    (shown,) = said(CATALOGUE, [message])
    changed = json.loads(json.dumps(message))
    changed["kept"][0]["reason"] = "UP"
    changed["jobs"]["rows"][0]["says"] = "3 NODES, 2"
    changed["checks"][0]["says"] = "CLUSTER <lab>?"
    assert shown == changed


def test_what_python_said_is_known_of_a_shown_sentence(said):
    text = "lab is not reached: the key was refused. Name one with add_cluster."
    shown = "NO WAY TO lab (KEY)ADD!"
    assert said(CATALOGUE, [text, {"shown": shown}, {"shown": "never said"}]) == [shown, text, "never said"]


@pytest.mark.parametrize("language", ["ja_JP", "zh_TW"])
def test_nearly_every_sentence_of_the_catalogue_is_found_again(said, language):
    catalogue = json.loads((LOCALE / language / "LC_MESSAGES" / "distdl_jupyter.json").read_text("utf-8"))
    values = ["gpu1", "/data/x.py", "7.5 GB", "ValueError", "node-b", "job-3", "k", "m", "n", "o"]

    def filled(text):
        for number in range(len(values), 0, -1):
            text = text.replace(f"%{number}", values[number - 1])
        return text.replace("%%", "%")

    texts = {filled(text): filled(forms[0]) for text, forms in catalogue.items() if text and len(text) > 20}
    shown = said(catalogue, list(texts))
    missed = [text for text, found in zip(texts, shown, strict=True) if found == text and texts[text] != text]
    assert len(texts) > 1000
    assert len(missed) <= len(texts) / 100, missed
