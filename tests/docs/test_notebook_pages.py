"""The notebooks that run while the site is built leave no process behind, however the build ends."""

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from tests.conftest import wait_for
from tests.docs.blocks import DOCS

pytestmark = pytest.mark.timeout(300)

JOB = "%load_ext distdl_jupyter\nfrom distdl_jupyter import submit\nprint(submit(lambda: 42).result())"
BUILD = "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import notebook_pages; "
BUILD += "notebook_pages.run_apart(Path(sys.argv[2]), Path(sys.argv[3]))"


def build(folder, *cells):
    """Start what ``make docs`` does with a notebook of these cells."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbformat.write(book, folder / "small.ipynb")
    environment = {name: value for name, value in os.environ.items() if name not in ("DISTDL_WARM", "DISTDL_WARM_DIR")}
    command = [sys.executable, "-c", BUILD, str(DOCS), str(folder / "small.ipynb"), str(folder / "kept")]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def left_behind(folder):
    """Return the processes that work below a folder, or have it on their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder) or str(folder) in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def templates(folder):
    found = []
    for process in left_behind(folder):
        try:
            if "distdl_jupyter.warm.template" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_build_ends_its_templates(tmp_path):
    seen = 0
    with build(tmp_path, JOB, JOB, "import time; time.sleep(3)") as process:
        while process.poll() is None:
            seen = max(seen, len(templates(tmp_path)))
            time.sleep(0.1)
        assert process.returncode == 0, process.stderr.read()
    assert seen, "a template was there while the notebook ran"
    wait_for(lambda: not left_behind(tmp_path), 20)


def test_a_build_that_is_interrupted_ends_its_templates_and_jobs(tmp_path):
    with build(tmp_path, JOB, "import time\njob = submit(time.sleep, (600,))\njob.wait()") as process:
        wait_for(lambda: len(list(tmp_path.glob("kept/home/jobs/2*"))) == 2 and templates(tmp_path), 120)
        time.sleep(1)
        process.terminate()
        assert process.wait(60) == 143
    wait_for(lambda: not left_behind(tmp_path), 20)
