"""What came of a job: values, how the rank that failed first ended, and its exception."""

import json
import pickle

import pytest

from distdl_jupyter.clusters.agents.agent import HostFailed
from distdl_jupyter.core.errors import InvalidSpec, JobFailed, JobNotFound, LaunchFailed, ResultUnavailable
from distdl_jupyter.core.failure import RankView
from distdl_jupyter.core.logfile import EventWriter
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore, create_id
from distdl_jupyter.jobs.client import Job
from distdl_jupyter.jobs.results import _find_exit
from distdl_jupyter.supervisor.reports import parse
from distdl_jupyter.worker.failure import describe
from distdl_jupyter.worker.frames import CellSources

EXIT, RAISED = {"type": "SystemExit", "message": "3"}, {"type": "KeyError", "message": "'label'"}


@pytest.mark.parametrize(
    ("error", "code", "signal", "told"),
    [
        pytest.param(EXIT, 3, None, (3, None), id="its own code"),
        pytest.param(EXIT, 1, None, (3, None), id="stopped behind mpirun"),
        pytest.param(EXIT, None, "TERM", (3, None), id="stopped while it was slow to go"),
        pytest.param(EXIT, None, "SEGV", (None, "SEGV"), id="crashed on its way out"),
        pytest.param(RAISED, None, "KILL", (1, None), id="raised and then stopped"),
        pytest.param(RAISED, 1, None, (1, None), id="raised"),
        pytest.param(None, 7, None, (7, None), id="a code without a word"),
        pytest.param(None, None, "KILL", (None, "KILL"), id="killed"),
    ],
)
def test_a_stop_is_not_how_a_rank_failed(error, code, signal, told):
    ending = _find_exit(RankView(rank=0, error=error, code=code, signal=signal))
    assert (ending["exit_code"], ending["signal"]) == told


def job(*results, end="completed"):
    """A job of as many ranks, each with a report of its result."""
    store = JobStore()
    spec = JobSpec(id=create_id(), name="done", process_count_per_node=len(results))
    folder = store.prepare(spec.id)
    folder.spec_file.write_text(spec.dumps())
    folder = store.publish(folder)
    writer = EventWriter(folder.events)
    writer.write("state", state="running", reason="")
    for rank, result in enumerate(results):
        writer.write("result", rank=rank, **{"ok": True, "repr": "", "bytes": 0, "error": None, **result})
        writer.write("rank", rank=rank, status="ended", code=0 if result.get("ok", True) else 1)
    writer.write("state", state=end, reason="")
    writer.close()
    return Job(folder)


def put(done, rank, value):
    done.folder.get_result_path(rank).write_bytes(pickle.dumps(value))


def test_a_value_that_did_not_come_back_is_an_error_with_its_reason():
    why = "The value of rank 0 is of type dict, which cannot be pickled (TypeError: cannot pickle a lock)."
    with pytest.raises(ResultUnavailable) as caught:
        job({"repr": "{'lock': 1}", "problem": why}).result()
    assert str(caught.value) == f"{why} Its text: {{'lock': 1}}"


def test_a_value_that_was_deleted_is_an_error_and_a_none_is_not():
    done = job({}, {})
    put(done, 0, None)
    assert done.result() is None
    with pytest.raises(ResultUnavailable, match="The value of rank 1 no longer exists"):
        done.results()


def test_result_opens_nothing_but_the_value_that_it_returns():
    done = job({}, {})
    put(done, 0, 42)
    done.folder.get_result_path(1).write_bytes(b"no pickle")
    assert done.result() == 42
    with pytest.raises(ResultUnavailable, match=r"rank-1\.pkl cannot be loaded here"):
        done.results()


class Unhappy(Exception):
    def __init__(self, step, why):
        raise AssertionError("its code does not run")


def raised(error):
    with pytest.raises(type(error)) as caught:
        raise error
    data = json.loads(json.dumps(describe(caught.value, CellSources())))
    assert parse({"type": "result", "ok": False, "repr": "", "bytes": 0, "error": data})
    return data


def cause_of(data):
    with pytest.raises(JobFailed) as caught:
        job({"ok": False, "error": data}, end="failed").result()
    return caught.value.__cause__


@pytest.mark.parametrize(
    "error",
    [
        KeyError("label"),
        OSError(2, "No such file", "x.csv"),
        SystemExit(3),
        ValueError(),
        Unhappy.__new__(Unhappy, 3, "w"),
    ],
)
def test_the_exception_of_the_rank_is_the_cause(error):
    cause = cause_of(raised(error))
    assert type(cause) is type(error)
    assert (cause.args, str(cause)) == (error.args, str(error))
    assert getattr(cause, "code", None) == getattr(error, "code", None)
    assert getattr(cause, "filename", None) == getattr(error, "filename", None)


@pytest.mark.parametrize(
    "error",
    [
        InvalidSpec("The rate is negative.", code="rate-negative", field="rate", hint="Set it to 0.1."),
        LaunchFailed("No host.", code="no-host", output="ssh: refused"),
        JobNotFound("Job a does not exist."),
    ],
)
def test_an_error_of_this_package_keeps_its_code(error):
    data = raised(error)
    with pytest.raises(JobFailed) as caught:
        job({"ok": False, "error": data}, end="failed").result()
    cause = caught.value.__cause__
    assert type(cause) is type(error)
    assert (cause.code, str(cause)) == (error.code, str(error))
    assert caught.value.code == error.code


def test_an_error_of_this_package_that_needs_more_arguments_is_no_cause():
    assert cause_of(raised(HostFailed("node-a", "The disk is full.", code="disk-full"))) is None


def test_arguments_that_are_no_plain_data_become_the_message():
    assert cause_of(raised(ValueError([1, 2]))).args == ("[1, 2]",)
    assert cause_of(raised(ValueError(float("nan")))).args == ("nan",)


@pytest.mark.parametrize(
    "more", [{"module": "not_imported"}, {"name": "Missing"}, {"module": "os", "name": "path"}, {"name": "len"}, {}]
)
def test_a_class_that_is_not_loaded_here_is_no_cause(more):
    data = raised(KeyError("label")) | more
    if not more:
        del data["module"]
    assert cause_of(data) is None
