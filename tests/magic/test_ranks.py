"""%%ranks and %dist_ranks in a real kernel, with real ranks."""

import os
import re
import signal

import pytest

from distdl_jupyter import jobs, ranks
from distdl_jupyter.core.events import State
from distdl_jupyter.views.job_table import make_job_row
from tests.conftest import wait_for
from tests.magic.conftest import Kernel, environment

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def started(kernel):
    """A kernel with three plain ranks."""
    start(kernel)
    yield kernel
    end()


def start(kernel):
    ran = kernel.ok("%dist_ranks start -p 3 -b torch")
    assert "3 ranks are ready after " in ran.text
    assert ran.text.endswith(
        "Call torch.distributed.init_process_group() once in a cell to initialize communication.\n"
    )


def end():
    if (left := ranks.find_session()) is not None:
        left.job.cancel(now=True)
        left.job.wait()


@pytest.fixture(scope="module")
def of_the_module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTDL_HOME", str(folder / "home"))
        one = Kernel(folder, environment(folder, folder / "ipython"))
        one.ok("%load_ext distdl_jupyter")
        start(one)
        yield one
        end()
        one.stop()


@pytest.fixture
def shared(of_the_module, distdl_home, monkeypatch):
    """The same for all tests that leave the ranks alive."""
    monkeypatch.setenv("DISTDL_HOME", of_the_module.ok("import os\nprint(os.environ['DISTDL_HOME'])").text.strip())
    return of_the_module


def plain(ran):
    return ran.shown[-1]["text/plain"] if ran.shown else ""


def test_without_ranks_one_sentence_says_how_to_start_them(shared_kernel):
    error = shared_kernel.run("%%ranks\n1").error
    assert error == "JobNotFound: No ranks are running. Start two with: %dist_ranks start -p 2"
    assert "No ranks are running" in shared_kernel.ok("%dist_ranks").value["text/plain"]
    assert (
        "Use one of: attach, interrupt, pull, push, restart, start, stop."
        in shared_kernel.run("%dist_ranks begin").error
    )
    assert "runs a cell on them" not in shared_kernel.ok("%dist_ranks?").text
    assert "%%ranks 0,2" in shared_kernel.ok("%%ranks?").pager
    assert "--distributed-backend" in shared_kernel.ok("%%distributed?").pager
    assert "--on-ranks" in shared_kernel.ok("%%distributed?").pager


def test_output_and_values_are_folded_and_names_stay(shared):
    ran = shared.ok("%%ranks\nprint('hello')\nprint('I am', rank)\nx = rank + 1\nworld_size")
    assert plain(ran).splitlines() == ["[0-2] hello", "[0] I am 0", "[1] I am 1", "[2] I am 2"]
    assert len(ran.shown) == 1, "a short cell is drawn once"
    assert ran.value["text/plain"] == "[0-2] 3"
    assert "0-2" in ran.value["text/html"]
    assert shared.ok("sum(_)").value["text/plain"] == "9"
    ran = shared.ok("%%ranks 0,2\nx")
    assert ran.value["text/plain"].splitlines() == ["[0] 1", "[2] 3"]
    assert shared.ok("dict(_)").value["text/plain"] == "{0: 1, 2: 3}"
    assert shared.ok("%%ranks 1-2 --quiet -o values\nprint('unseen'); x * 10").shown == []
    assert shared.ok("dict(values)").value["text/plain"] == "{1: 20, 2: 30}"
    ran = shared.ok("%%ranks\nx;")
    assert (ran.value, ran.shown) == (None, [])
    assert jobs()[0].spec.kind == "ranks"
    assert make_job_row(jobs()[0].view(), jobs()[0].spec, 0.0).message == "waits for a cell"
    assert "I am 1" in shared.ok("%dist_logs --rank 1").text


def test_names_go_to_the_ranks_and_come_back(shared):
    shared.ok("data = {'a': 1}\n%dist_ranks push data")
    assert shared.ok("%%ranks\ndata['a'] += rank; data['a']").value["text/plain"].splitlines()[2] == "[2] 3"
    assert shared.ok("%dist_ranks pull data").value["text/plain"] == "[{'a': 1}, {'a': 2}, {'a': 3}]"
    assert shared.ok("%dist_ranks pull data --ranks 1").value["text/plain"] == "{1: {'a': 2}}"
    assert "no variable 'nothing'" in shared.run("%dist_ranks push nothing").error
    ran = shared.run("other = 1\nget_ipython().run_cell_magic('ranks', '', 'other')")
    assert "%dist_ranks push other" in plain(ran)
    assert shared.ok("%%distributed --on-ranks\nimport os\nother, os.environ['RANK']").value["text/plain"] == (
        "[0] (1, '0')\n[1] (1, '1')\n[2] (1, '2')")  # fmt: skip
    assert "--process-count-per-node cannot be combined" in shared.run("%%distributed --on-ranks -p 2\n1").error


def test_a_failure_names_rank_cell_and_line_and_stops_the_notebook(shared):
    ran = shared.run("%%ranks\nprint('before')\nif rank == 1:\n    {}['label']")
    cell = re.search(r"Rank 1 of 3 failed first: KeyError: 'label', in (Cell \[\d+\]) in quickstart", ran.error)
    assert ran.error.startswith("CellFailed: ")
    assert "line 4" in ran.error
    assert "Traceback" not in ran.traceback, "the output tells it already"
    assert plain(ran).splitlines()[0] == "[0-2] before"
    assert f'File "{cell[1]} in quickstart.ipynb", line 4, in <module>' in plain(ran)
    assert "➜" in ran.shown[-1]["text/html"]
    ran = shared.run("%%ranks\nnowhere")
    assert ran.error.startswith("CellFailed: All 3 ranks failed with the same error: NameError")
    for cell, words in (("!ls", "is a shell command"), ("%time 1", "is an IPython magic"), ("1 +", "not valid Python")):
        assert words in shared.run(f"%%ranks\n{cell}").error
    assert "Unknown rank 5. The ranks are 0 to 2." in shared.run("%%ranks 5\n1").error
    assert "is not a valid list of ranks. " in shared.run("%%ranks all\n1").error
    assert shared.ok("%%ranks\nrank == rank").value["text/plain"] == "[0-2] True"


def test_the_stop_button_reaches_the_code_on_the_ranks(shared):
    pressed = []

    def during(_):
        if not pressed:
            pressed.append(True)
            shared.interrupt()

    ran = shared.run(
        "%%ranks\nimport time\nkept = 7\nprint('up', flush=True)\nwhile True: time.sleep(0.1)", during=during
    )
    assert ran.error.startswith("CellInterrupt: The cell was interrupted. The ranks are idle again.")
    assert ran.traceback.startswith("KeyboardInterrupt")
    assert plain(ran).splitlines() == ["[0-2] up", "Interrupted on ranks 0-2."]
    assert shared.ok("%%ranks\nkept").value["text/plain"] == "[0-2] 7"


def test_a_rank_that_failed_is_shown_while_the_others_wait(shared):
    seen = []

    def during(_):
        if not seen:
            seen.append(True)
            shared.interrupt()

    ran = shared.run(
        "%%ranks\nimport time\nif rank == 1: raise ValueError('bad')\nwhile True: time.sleep(.1)", during=during
    )
    assert "Rank 1 of 3 failed first: ValueError: bad" in ran.shown[0]["text/plain"]
    assert "Ranks 0,2 are still running" in ran.shown[0]["text/plain"]
    assert "Ranks 0,2: KeyboardInterrupt" in plain(ran)


def test_ranks_outlive_the_kernel(started):
    started.ok("%%ranks\nkept = rank * 10")
    first = ranks.find_session().id
    started.manager.restart_kernel(now=True)
    started.client.wait_for_ready(timeout=120)
    started.ok("%load_ext distdl_jupyter")
    told = started.ok("%dist_ranks").value["text/plain"]
    assert told.startswith("3 ranks are running, started earlier, for ")
    assert "They are idle; the last cell was In [3]." in told
    ran = started.ok("%%ranks\nkept")
    assert ran.text.startswith("Using 3 ranks started earlier (")
    assert ran.value["text/plain"] == "[0] 0\n[1] 10\n[2] 20"
    assert started.ok("%%ranks\n1").text == "", "it is said once"
    assert "already running" in started.run("%dist_ranks start -p 2").error
    assert "3 ranks are ready" in started.ok("%dist_ranks restart").text
    assert ranks.find_session().id != first
    assert started.run("%%ranks\nkept").error.startswith("CellFailed")
    assert "3 ranks stopped" in started.ok("%dist_ranks stop").text
    assert jobs()[0].state is State.COMPLETED
    assert "The ranks were stopped. Start new ones with %dist_ranks start" in started.run("%%ranks\n1").error


def test_a_rank_that_dies_ends_them_with_its_reason(started):
    ran = started.run(
        "%%ranks\nimport os, time\nprint('here')\ntime.sleep(.3)\nif rank == 2: os.kill(os.getpid(), 9)\ntime.sleep(60)"
    )
    assert "Rank 2 of 3 failed first: ended by SIGKILL" in ran.traceback
    assert plain(ran).startswith("[0-2] here")
    wait_for(lambda: jobs()[0].state is State.FAILED)
    told = started.ok("%dist_ranks").value["text/plain"]
    assert "ended by SIGKILL" in told
    assert "No ranks are running" in told
    assert "ended by SIGKILL" in started.run("%%ranks\n1").traceback
    assert "2 ranks are ready" in started.ok("%dist_ranks start -p 2 -b torch").text
    assert started.ok("%%ranks\nrank").value["text/plain"] == "[0] 0\n[1] 1"
    status = started.ok("%dist_ranks").value["text/plain"]
    assert status.startswith("2 ranks are running, for ")
    assert status.splitlines()[1].split() == ["Rank", "Process", "Memory"]
    os.kill(int(status.splitlines()[2].split()[1]), signal.SIGKILL)
    wait_for(lambda: jobs()[0].state is State.FAILED)
