"""The catalogues of the languages: complete, with the same placeholders, and found by JupyterLab."""

import json
import re
import subprocess

import pytest

from tests.installation import ROOT

LANGUAGES = ["ja_JP", "zh_TW"]
LOCALE = ROOT / "distdl_jupyter" / "locale"


def test_every_text_of_the_source_is_in_the_catalogues_and_translated():
    command = ["node", str(ROOT / "labextension" / "catalogues.mjs"), "--check", str(LOCALE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_text_with_a_plural_has_two_forms(language):
    """JupyterLab takes a text with a plural from the catalogue only then, also where a language has one form."""
    catalogue = LOCALE / language / "LC_MESSAGES"
    plural = re.findall(r'msgid "(.*)"\nmsgid_plural', (catalogue / "distdl_jupyter.po").read_text("utf-8"))
    compiled = json.loads((catalogue / "distdl_jupyter.json").read_text("utf-8"))
    assert plural
    assert {len(compiled[text]) for text in plural if text in compiled} == {2}


def test_jupyterlab_finds_the_catalogue_where_the_language_pack_is_installed(installed):
    code = """
import json
from jupyterlab_server.translation_utils import get_language_pack, get_language_packs
packs, message = get_language_pack("ja_JP")
print(json.dumps([packs.get("distdl_jupyter"), message, sorted(get_language_packs()[0])]))
"""
    catalogue, message, offered = json.loads(installed.run("python", "-c", code))
    assert message == ""
    assert "ja_JP" in offered
    assert catalogue[""]["language"] == "ja-JP"
    assert catalogue["Distributed training"] == ["分散学習"]
