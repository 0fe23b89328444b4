"""How the jobs of tests start: from one template a worker, or each as a new process; a pytest plug-in.

They start warm, as they do for users; ``@pytest.mark.cold`` starts those of one test cold, and DISTDL_TEST_START=cold
those of all tests but the ones whose subject is the warm start. A function of a test travels as one of a notebook does,
by value: as one of the package ``tests`` it would take all its files along.
"""

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import cloudpickle
import psutil
import pytest

import tests
from distdl_jupyter.clusters.environment import select_for_local_ranks
from distdl_jupyter.node.data_cache import get_default_base
from distdl_jupyter.node.job import WARM_NOTICE
from distdl_jupyter.warm import preload
from distdl_jupyter.warm import start as warm_start
from distdl_jupyter.warm.start import COLD_START_CODE
from distdl_jupyter.worker.hooks import frameworks

#: What the template imports before the first job has said what it needs.
AHEAD = ("numpy", "torch", "torch.distributed", "torch._dynamo", "horovod.torch")
#: Bytes of a job's events in which its start is told.
_BEGINNING = 64 * 1024
FILES = ("events.jsonl", "log.jsonl")

cloudpickle.register_pickle_by_value(tests)


@pytest.fixture(scope="session", autouse=True)
def runtime():
    """An own place for sockets, whose paths must be short."""
    folder = Path(tempfile.mkdtemp(prefix="dj-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder))
        yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session", autouse=True)
def template(runtime, tmp_path_factory):
    """One template for all data directories of this worker's tests; the first job here waits until it is ready."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTDL_WARM_DIR", str(tmp_path_factory.mktemp("template")))
        patch.setenv("DISTDL_WARM", "off" if os.environ.get("DISTDL_TEST_START") == "cold" else "on")
        # Tests with a cache of their own share the template too: torch reads this variable while it is imported.
        patch.setenv(frameworks.COMPILED_VARIABLE, str(get_default_base() / frameworks.COMPILED_FOLDER))
        # A machine that does much else is slow to answer; that is another test's affair.
        patch.setattr(warm_start, "_TIMEOUT_SECONDS", 30.0)
        where, ask = warm_start.get_template_files(), warm_start._request
        preload.ImportHistory(where.history).add(AHEAD)

        def ask_a_ready_one(wanted, message, *descriptors):
            if wanted == where and message["type"] == "start":
                patch.setattr(warm_start, "_request", ask)
                revive()
            return ask(wanted, message, *descriptors)

        patch.setattr(warm_start, "_request", ask_a_ready_one)
        yield
        end_templates(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def start(request, monkeypatch):
    """Start the jobs of a test cold that is marked so."""
    if request.node.get_closest_marker("cold"):
        monkeypatch.setenv("DISTDL_WARM", "off")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item):
    """Note how each job of the test was started, for the last lines."""
    home = getattr(item, "funcargs", {}).get("distdl_home")
    # Jobs that were only written have no supervisor.
    for log in Path(home, "jobs").glob("*/supervisor.log") if home else ():
        with contextlib.suppress(FileNotFoundError):
            item.user_properties.append(("start", _start_of(*(beginning(log.with_name(name)) for name in FILES))))


def beginning(path):
    with path.open("rb") as file:
        return file.read(_BEGINNING)


def _start_of(events, log):
    if WARM_NOTICE.encode() in log:
        return "warm"
    notes = [
        json.loads(line) for line in events.splitlines() if line.endswith(b"}") and COLD_START_CODE.encode() in line
    ]
    return next((note["text"] for note in notes if note.get("code") == COLD_START_CODE), "cold, as the test wants")


def pytest_terminal_summary(terminalreporter):
    """Tell how many jobs started warm, and why the others did not: a reason that comes often costs much time."""
    reports = [one for kind in ("", "error") for one in terminalreporter.stats.get(kind, ()) if one.when == "teardown"]
    found = Counter(value for one in reports for name, value in one.user_properties if name == "start")
    if found:
        terminalreporter.section("how jobs started")
    for value, count in found.most_common():
        terminalreporter.line(f"{count:5} {value}")


#: The templates that were seen to here, by their keys: one that a job of a test had made has that test's variables.
_own: dict[str, int] = {}


def revive():
    """See to a ready template and return what it says of itself."""
    where = warm_start.get_template_files()
    said = warm_start.get_status(where)
    if said is not None and said["pid"] != _own.get(where.key):
        warm_start.stop(where)
    said = _made(where)
    if preload.find_difference(psutil.Process(said["pid"]).environ(), select_for_local_ranks(os.environ), {"TMPDIR"}):
        # A job of an earlier test was still having it made.
        warm_start.stop(where)
        said = _made(where)
    _own[where.key] = said["pid"]
    return said


def _made(where):
    """Return what the next ready template says, one that is made already or by now."""
    warm_start.start_template(where)
    # What it learns from an earlier test's job may make it begin anew.
    until = time.monotonic() + 120
    while (said := warm_start.wait_until_ready(where)) is None or said["learning"]:
        assert time.monotonic() < until, where.log.read_text()
        time.sleep(0.05)
    return said


def end_templates(folder):
    """End the templates below a folder, those of other environments too."""
    found = [process for process in psutil.process_iter(["cmdline"]) if _is_template(process, folder)]
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    left = psutil.wait_procs(found, 10)[1]
    assert not left, f"templates {left} outlived the tests"


def _is_template(process, folder):
    try:
        return "distdl_jupyter.warm.template" in process.info["cmdline"] and Path(process.cwd()).is_relative_to(folder)
    except (psutil.Error, TypeError):
        return False
