"""The site is built as ``make docs`` builds it; what the reference says is what the code says."""

import re
import sys

import pytest

from distdl_jupyter.api import openapi
from distdl_jupyter.core.options import OPTIONS
from distdl_jupyter.worker import failure
from tests.docs.blocks import DOCS, ROOT, pages

sys.path.insert(0, str(DOCS))
import codes
import figures
import links
import reference

#: What reads as translated: "is no cluster", "a host that is not there any more".
TRANSLATED = re.compile(
    r"(?<!there )\bis no (?!longer)|\bstands\b(?! for)|"
    r"\b(as logging|any more|anew|goes on|looked at|of the kind|sign of life|travels?|whoever)\b",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    reference.write(folder)
    return {path.stem: path.read_text() for path in folder.glob("*.md")}


def test_the_reference_has_every_option_call_and_command(written):
    assert [name for name in OPTIONS if f"## `{name}`" not in written["options"]] == []
    assert [path for path in openapi.create_document()["paths"] if f"## `{path}`" not in written["http"]] == []
    assert "## `distdl submit`" in written["command-line"]
    assert "### `Job.result`" in written["python"]
    distributed, _, sweep = written["magics"].partition("## `%%sweep`")
    assert "--max-restarts" in distributed
    assert "--max-restarts" in sweep


def test_an_error_has_its_remedy_at_the_address_of_its_code(written):
    page = written["troubleshooting"]
    anchors = re.findall(r"(?m)^\(([a-z0-9-]+)\)=$", page)
    assert len(anchors) == len(set(anchors)) > 130
    entry = re.search(r"\(rank-killed\)=\n\n### `rank-killed`\n\n(.+)", page)
    assert entry is not None
    assert "ended by SIGKILL" in entry[1]
    assert "smaller batch" in entry[1]


def test_each_code_that_a_message_links_to_has_an_entry(written):
    page = written["troubleshooting"]
    linked = {entry.code for entry in codes.entries()} | {"rank-lost", "rank-exit", "uneven-steps", "unequal-calls"}
    linked |= {code for code, _ in failure.RULES} | {"http-404", "internal-error"}
    assert [code for code in sorted(linked) if f"({code})=" not in page] == []


def test_pages_are_in_plain_english(written):
    texts = written | {path.name: path.read_text() for path in [*pages(), ROOT / "SECURITY.md"]}
    assert {name: match[0] for name, text in texts.items() if (match := TRANSLATED.search(text))} == {}


def test_figures_are_those_of_the_results():
    page = (ROOT / "tests/benchmarks/RESULTS.md").read_text()
    found = figures.all_figures()
    assert f"| warm horovod | {found['warm_horovod_time']} | horovodrun | {found['warm_horovod_peer']} |" in page


def test_a_dead_link_and_a_script_from_elsewhere_are_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<h1 id="a"><a href="#a"><a href="#b"><a href="no.html"><script src="https://cdn/x.js"></script>')
    found = links._wrong(page, links.Page(page), {page: links.Page(page)})
    assert found == ["loads https://cdn/x.js", "#b has no such place", "no.html is not there"]
