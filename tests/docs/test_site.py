"""The site is built as ``make docs`` builds it; what the reference says is what the code says."""

import json
import sys

import pytest

from distdl_jupyter.core.options import ABOUT
from tests.docs.blocks import DOCS, ROOT

sys.path.insert(0, str(DOCS))
import figures
import links
import reference


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    reference.write(folder)
    return {path.stem: path.read_text() for path in folder.glob("*.md")}


def test_the_reference_has_every_option_call_and_command(written):
    assert [name for name in ABOUT if f"## `{name}`" not in written["options"]] == []
    paths = json.loads((ROOT / "distdl_jupyter/server/openapi.json").read_text())["paths"]
    assert [path for path in paths if f"## `{path}`" not in written["http"]] == []
    assert "## `distdl submit`" in written["command-line"]
    assert "### `Job.result`" in written["python"]


def test_a_refusal_has_its_remedy_and_an_address_of_its_own(written):
    page = written["troubleshooting"]
    sentence = "(error-a-job-s-name-has-1-to-120-printable-characters)=\n\n### A job's name has 1 to 120"
    assert sentence in page
    addresses = [line for line in page.splitlines() if line.startswith("(error-")]
    assert len(addresses) == len(set(addresses)) > 300


def test_figures_are_those_of_the_results():
    page = (ROOT / "tests/benchmarks/RESULTS.md").read_text()
    found = figures.all_figures()
    assert f"| warm horovod | {found['warm_horovod_time']} | horovodrun | {found['warm_horovod_peer']} |" in page


def test_a_dead_link_and_a_script_from_elsewhere_are_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<h1 id="a"><a href="#a"><a href="#b"><a href="no.html"><script src="https://cdn/x.js"></script>')
    found = links._wrong(page, links.Page(page), {page: links.Page(page)})
    assert found == ["loads https://cdn/x.js", "#b has no such place", "no.html is not there"]
