"""Turns the notebooks into pages on which the views of their jobs work without a server.

The notebooks of ``EXECUTED`` run once, and again if they or the package's version change; the other pages show the
saved outputs, and say so. The messages of each job of an executed notebook are saved, and ``_static/embedded.js``
passes them to the view that JupyterLab uses. A launch form is shown by its own view, in its state after the notebook
has run. Both are bundled from ``labextension/src/site.ts``.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
#: Run when the site is built; each should need less than two minutes on two idle cores.
EXECUTED = (
    "quickstart", "when_a_rank_fails", "when_training_hangs", "ranks", "from-batch-ai", "scoring",
    "segmentation_detection", "model_parallel", "asynchronous", "learning_rate", "larger_than_a_node",
)  # fmt: skip
VERSIONS = ("distdl_jupyter", "torch", "horovod")
#: A link to a file beside the notebooks.
_FILE = re.compile(r"\[`?([^\]`]+)`?\]\(((?!https?:)[\w./-]+\.(?:py|json))\)")
MIME = "application/vnd.distdl.job+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
#: The last cell of a notebook that shows launch forms: the state of each, by the identifier of its widget.
FORMS = """
import json
from distdl_jupyter.views.wire import to_json
from distdl_jupyter.widgets.launch import LaunchPanel

shown = [value for value in globals().values() if isinstance(value, LaunchPanel)]
print(json.dumps({launcher.model_id: to_json(launcher.form.compute_state()) for launcher in shown}))
"""


def write(folder: Path, static: Path) -> None:
    """Write a page for each notebook into ``folder``, and the messages of its jobs into ``static``."""
    for directory in (folder, static):
        directory.mkdir(parents=True, exist_ok=True)
    # A classic script: a page that was opened as a file may load no modules.
    bundle("src/site.ts", static / "views.js", "--format=iife", "--global-name=distdlViews")
    bundle("style/widgets.css", static.parent / "widgets.css")
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        run_folder = executed(path) if path.stem in EXECUTED else None
        notebook = nbformat.read(run_folder / path.name if run_folder else path, as_version=4)
        if run_folder:
            for file in run_folder.glob("jobs.js/*.js"):
                (static / file.name).write_text(of_any_machine(file.read_text(), run_folder))
        text = nbformat.writes(page(notebook, path.name, (run_folder / "run.txt").read_text() if run_folder else ""))
        text = of_any_machine(text, run_folder) if run_folder else text
        target = folder / path.name
        if not target.exists() or target.read_text() != text:
            target.write_text(text)


def of_any_machine(text: str, run_folder: Path) -> str:
    """Return a text with a reader's directories in place of those of the machine that built the site."""
    for here, there in (
        (run_folder / "home", "~/.local/share/jupyter/distdl"),
        (sys.prefix, ".venv"),
        (ROOT, "~/distdl"),
    ):
        text = text.replace(str(here), there)
    return text


def bundle(source: str, target: Path, *options: str) -> None:
    """Bundle a file of the front end with all that it imports into one file."""
    front_end = ROOT / "labextension"
    esbuild = front_end / "node_modules" / ".bin" / "esbuild"
    command = [esbuild, front_end / source, "--bundle", "--minify", "--charset=utf8", f"--outfile={target}", *options]
    subprocess.run(command, check=True, capture_output=True)


def page(notebook: Any, name: str, run: str) -> Any:
    """Return a notebook as the site shows it: each output of a job carries the view, with its saved page inside."""
    has_outputs = False
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        if cell.cell_type == "markdown":
            cell.source = _FILE.sub(r"{download}`\1 <../../notebooks/\2>`", cell.source).replace("](../docs/", "](../")
        for output in cell.get("outputs", ()):
            has_outputs = True
            data = output.get("data", {})
            if MIME in data:
                job = data.pop(MIME)["id"]
                saved = "".join(data["text/html"])
                data["text/html"] = f'<div class="distdl-job" data-job="{job}">{saved}</div>' if run else saved
            elif run and WIDGET in data:
                form = data.pop(WIDGET)["model_id"]
                data["text/html"] = f'<div class="distdl-form" data-form="{form}">The launch form</div>'
    notice = run or (
        "This page shows the saved outputs of the notebook."
        if has_outputs
        else "The build cannot run this notebook, which needs more than it has; the tests run it (tests/notebooks)."
    )
    note = nbformat.v4.new_markdown_cell(f"*{notice}* {{download}}`Notebook <../../notebooks/{name}>`", id="cell-note")
    notebook.cells.insert(1, note)
    notebook.metadata.pop("widgets", None)
    return notebook


def executed(path: Path) -> Path:
    """Return the folder of an executed notebook, the messages of its jobs, and its date; run it if it is missing."""
    versions = {name: metadata.version(name) for name in VERSIONS}
    key = hashlib.sha256(path.read_bytes() + json.dumps(versions).encode()).hexdigest()[:12]
    target = Path(sys.prefix) / "docs" / f"{path.stem}-{key}"
    if not (target / "run.txt").exists():
        target.mkdir(parents=True, exist_ok=True)
        run_apart(path, target)
        named = ", ".join(f"{name} {version}" for name, version in versions.items())
        day = dt.datetime.now(dt.UTC).date()
        (target / "run.txt").write_text(f"This page was run on {day}: Python {sys.version.split()[0]}, {named}.")
    return target


def run_apart(path: Path, target: Path) -> None:
    """Run a notebook in a process and a data directory of its own, and leave no process behind.

    That holds also when the notebook fails and when the build is interrupted. Raises CalledProcessError.
    """
    environment = {**os.environ, "DISTDL_HOME": str(target / "home")}
    environment.pop("DISTDL_WARM_DIR", None)  # the templates there are the user's
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # make's end of an interrupt
    try:
        subprocess.run([sys.executable, __file__, str(path), str(target)], check=True, env=environment)
    finally:
        subprocess.run([sys.executable, __file__, "--clean-up"], check=True, env=environment)
        signal.signal(signal.SIGTERM, before)


# in a process of its own, with a data directory of its own ------------------------------------------


def run(path: Path, target: Path) -> None:
    """Run a notebook; write it and the messages of its jobs into ``kept``. Raises RuntimeError when a cell fails."""
    sys.path.insert(0, str(NOTEBOOKS))
    from run import execute

    from distdl_jupyter.warm import start

    start.change_settings(idle_minutes=1)  # for a build that is killed and cannot clean up

    has_forms = "launcher(" in "".join(cell.source for cell in nbformat.read(path, as_version=4).cells
                                       if cell.cell_type == "code")  # fmt: skip
    if failure := execute(path, target / path.name, FORMS if has_forms else ""):
        raise RuntimeError(f"{path.name} failed:\n{failure}")
    from distdl_jupyter import jobs

    scripts = target / "jobs.js"
    scripts.mkdir(exist_ok=True)
    if has_forms:
        notebook = nbformat.read(target / path.name, as_version=4)
        for form, state in json.loads(notebook.cells.pop().outputs[0].text).items():
            (scripts / f"{form}.js").write_text(script("distdlForms", form, state))
        nbformat.write(notebook, target / path.name)
    for job in jobs():
        (scripts / f"{job.id}.js").write_text(script("distdlJobs", job.id, messages(job)))


def clean_up() -> None:
    """Cancel the jobs that still run in this data directory, and end its template."""
    from distdl_jupyter import jobs
    from distdl_jupyter.warm import start

    for job in jobs():
        if not job.state.ended:
            job.cancel(now=True)
            job.wait(30)
    start.stop(start.get_template_files())


def script(table: str, key: str, value: Any) -> str:
    """Return a script that puts a value into a table of the page."""
    text = json.dumps(value).replace("</", "<\\/")
    return f'(window.{table} ??= {{}})["{key}"] = {text};\n'


def messages(job: Any) -> dict[str, Any]:
    """Return the messages about an ended job that a page may need: its state, log, curves, resources and stacks."""
    from distdl_jupyter.core import stacks
    from distdl_jupyter.core.log import MAX_ROWS
    from distdl_jupyter.live.job import LiveJob
    from distdl_jupyter.live.messages import CurveRequest
    from distdl_jupyter.views.stacks import make_job_stacks as shown
    from distdl_jupyter.views.wire import to_json

    live = LiveJob(job.id, capacity=MAX_ROWS)
    while not live.is_settled:
        live.poll()
    state = json.loads(live.encode_state().data)
    names = [metric["name"] for metric in state["metrics"]]
    requests = [CurveRequest(metric=name, mode=mode) for name in names for mode in ("band", "ranks")]
    curves = [
        json.loads(live.encode_curve(request, key).data) for request in requests if (key := live.get_curve_key(request))
    ]
    default = live.get_curve_key(CurveRequest()).rpartition(" ")[0]
    resources = live.encode_resources(key) if (key := live.get_resources_key()) else None
    taken = {number: stacks.read(job.folder, number) for number in range(1, 10)}
    return {
        "job": state,
        "log": json.loads(live.encode_log(0).data),
        "curves": curves,
        "default_metric": default,
        "resources": json.loads(resources.data) if resources else None,
        "stacks": {number: to_json(shown(snapshot)) for number, snapshot in taken.items() if snapshot is not None},
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--clean-up"]:
        clean_up()
    else:
        run(Path(sys.argv[1]), Path(sys.argv[2]))
