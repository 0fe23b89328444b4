"""Reports of steps become lines of the job's folder: whole, valid ones, and a disk that refuses them ends nothing."""

import pytest

from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core import step_times
from distdl_jupyter.supervisor import reports
from distdl_jupyter.supervisor.log_reader import RankReport
from distdl_jupyter.supervisor.recorder import EventRecorder
from tests.supervisor.test_recorder import spec

GOOD = {"type": "steps", "t": 1.0, "first": 0, "size": 1, "records": [[10_000, 1000, 500, 8, 2000]]}


def test_reports_are_kept_by_rank_and_attempt_and_read_back(folder):
    recorder = EventRecorder(folder, spec())
    recorder.take(Stream(-1, 1, "out"), [RankReport(GOOD)])
    recorder.write("restart", rank=1, ranks=None, reason="Rank 1 failed.")
    recorder.take(Stream(-1, 1, "out"), [RankReport(GOOD)])
    recorder.close()
    assert folder.steps.stat().st_mode & 0o777 == 0o600
    times = step_times.read(folder.steps)
    assert [(row.attempt, row.rank, row.seconds) for row in times.rows] == [(0, 1, 0.01), (1, 1, 0.01)]


@pytest.mark.parametrize(
    "wrong",
    [{"first": -1}, {"size": 0}, {"records": [[1, 2, 3]]}, {"records": [[1, 2, 3, "8"]]},
     {"records": None}, {"records": [[1, 2, 3, 4]] * 201}, {"gpu_memory": [1]}, {"gpu_memory": ["1", 2]}],
)  # fmt: skip
def test_what_is_no_report_of_steps_is_text(wrong):
    assert reports.parse(GOOD)
    with pytest.raises(reports.InvalidReport):
        reports.parse({**GOOD, **wrong})


def test_disk_that_refuses_is_told_once_and_the_job_goes_on(folder):
    folder.steps.mkdir()
    recorder = EventRecorder(folder, spec())
    for _ in range(2):
        recorder.take(Stream(-1, 0, "out"), [RankReport(GOOD)])
    recorder.close()
    assert folder.log.read_text().count("Step times cannot be stored: Is a directory.") == 1
