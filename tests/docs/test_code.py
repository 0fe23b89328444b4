"""What the documentation tells people to type: it is compiled, its options are known, and what can run here runs."""

import argparse
import ast
import inspect
import re
import shlex

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient

import distdl_jupyter
from distdl_jupyter import cli
from distdl_jupyter.core import registry
from distdl_jupyter.core.options import ALIASES, OPTIONS, TOTAL_NAMES
from distdl_jupyter.form.arguments import make_cell_parser
from tests.docs.blocks import ROOT, blocks, pages

#: Calls that take the options of a job.
TAKE_OPTIONS = {"submit", "scale", "check", "launcher"}
#: Pages of which these Python blocks run here as they stand, in one kernel; the others need a cluster or another tool.
RUN = {
    "docs/tutorial/first-job.md": range(9),
    "docs/tutorial/cluster.md": range(2),
    "docs/coming-from/notebook-launcher.md": [1],
    "docs/coming-from/torch-distributor.md": [1],
    "docs/coming-from/horovod-runner.md": [1, 2],
}
#: What such a page takes for granted.
GIVEN = """
%load_ext distdl_jupyter
def train(number=0, lr=0.0):
    import os
    return os.environ["RANK"], number, lr
"""


def every(kind):
    return [pytest.param(block, id=f"{block.page}:{block.line}")
            for page in pages() for block in blocks(page) if block.kind == kind]  # fmt: skip


def options():
    plugins = {
        field.name
        for kind in registry.KINDS
        for name in registry.list_names(kind)
        for field in registry.get_options(kind, name)
    }
    return {*OPTIONS, *ALIASES, *TOTAL_NAMES, *plugins}


@pytest.mark.parametrize("block", every("python"))
def test_python_compiles_and_its_options_are_known(block):
    lines = block.text.splitlines()
    if lines[0].startswith("%%distributed"):
        make_cell_parser().parse(lines[0].removeprefix("%%distributed").strip())
        lines = lines[1:]
    elif lines[0].startswith("%%ranks"):
        lines = lines[1:]
    tree = ast.parse(TransformerManager().transform_cell("\n".join(lines)))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = getattr(call.func, "id", "")
        if called in TAKE_OPTIONS:
            own = set(inspect.signature(getattr(distdl_jupyter, called)).parameters)
            assert {word.arg for word in call.keywords if word.arg} <= own | options(), ast.unparse(call)
        elif called in distdl_jupyter.__all__:
            inspect.signature(getattr(distdl_jupyter, called)).bind(
                *call.args, **{w.arg: w for w in call.keywords if w.arg}
            )


@pytest.mark.parametrize("block", every("sh"))
def test_commands_are_known(block, monkeypatch):
    def refused(_parser, message):
        raise AssertionError(message)

    monkeypatch.setattr(argparse.ArgumentParser, "error", refused)
    lines = (re.sub(r"^(\w+=\S+ )+", "", line) for line in block.text.splitlines())
    commands = [shlex.split(line, comments=True) for line in lines]
    assert {words[0] for words in commands if words} <= {
        "distdl", "pip", "make", "jupyter", "python3", ".", "git", "cd", "ssh", "ssh-keygen", "ssh-copy-id", "sinfo",
    }  # fmt: skip
    for words in commands:
        if words[:1] == ["distdl"]:
            cli.make_parser().parse_args(words[1:])
        elif words[:1] == ["make"]:
            assert re.search(rf"(?m)^{words[1]}:.*## ", (ROOT / "Makefile").read_text())


@pytest.mark.full
@pytest.mark.parametrize("page", RUN)
def test_pages_run_as_they_stand(page, tmp_path, distdl_home):
    python = [block.text for block in blocks(ROOT / page) if block.kind == "python"]
    cells = [GIVEN, *(python[number] for number in RUN[page])]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    NotebookClient(notebook, timeout=200, kernel_name="python3").execute(cwd=str(tmp_path))
    assert {job.state.value for job in distdl_jupyter.jobs()} == {"completed"}


def test_the_example_of_readme_is_that_of_the_tutorial_and_draws_a_curve(tmp_path, distdl_home):
    cells = [block.text for block in blocks(ROOT / "README.md") if block.kind == "python"]
    assert cells == [block.text for block in blocks(ROOT / "docs/tutorial/first-job.md")][: len(cells)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    NotebookClient(notebook, timeout=200, kernel_name="python3").execute(cwd=str(tmp_path))
    assert "<svg" in notebook.cells[-1].outputs[0].data["text/html"], "the saved panel has the curve"
    (job,) = distdl_jupyter.jobs()
    assert job.result() < 0.1
    losses = job.metrics().groupby("step")["loss"].mean()
    assert len(losses) == 600
    assert losses.iloc[-1] < losses.iloc[0]


def test_readme_and_the_tutorial_install_alike():
    readme, tutorial = (
        next(block.text for block in blocks(ROOT / page) if block.kind == "sh")
        for page in ("README.md", "docs/tutorial/install.md")
    )
    assert readme == tutorial
