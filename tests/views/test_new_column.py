"""A column of the list of jobs is one field of its rows and one entry of ``COLUMNS``."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.views import job_table
from distdl_jupyter.views.job_table import JobRow, JobTable
from distdl_jupyter.views.wire import to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWithLimit(JobRow):
    max_restarts: int  # a field of JobView


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "JobRow", RowWithLimit)
    monkeypatch.setitem(job_table.COLUMNS, "Restarts", lambda job, _now: f"{job.restarts} of {job.max_restarts}")


def test_a_new_column_travels_and_is_shown() -> None:
    spec = JobSpec(id="20261121-024912-k3f9x", name="digits", max_restarts=3)
    row = job_table.make_job_row(JobView.from_spec(spec), spec, 10.0)
    assert to_json(row)["max_restarts"] == 3
    head, line = str(JobTable([row], now=10.0)).splitlines()
    assert head.split()[-2:] == ["Created", "Restarts"]
    assert line.endswith("0 of 3")
    assert "<th style" in JobTable([row])._repr_html_()
    assert "0 of 3" in JobTable([row])._repr_html_()
