"""What is said about data sources before the start."""

import dataclasses

import pandas as pd
import pytest

from distdl_jupyter import preflight
from distdl_jupyter.capture import capture_cell
from distdl_jupyter.core.data import parse_sources
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.spec import JobSpec


def found(code, data):
    spec = dataclasses.replace(JobSpec(id="", name=""), data=parse_sources(data))
    draft = capture_cell(code, {}, execution_count=7, first_line=1)
    return {finding.code: finding for finding in preflight.check(draft, spec)}


READS = "from distdl_jupyter import data_path\nprint(data_path('train'), data_path(which))"


def test_the_code_asks_for_what_is_given():
    assert not found(READS.replace("which", "'Labels'"), {"train": "shared:/a", "labels": "shared:/b"})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"test": "shared:/a"}, "Line 2 of Cell [7] uses the data source 'train', but the job has only test."),
        ({}, "Line 2 of Cell [7] uses the data source 'train', but the job has none."),
    ],
)
def test_a_source_that_is_not_given(data, says):
    finding = found(READS, data)["data-not-given"]
    assert finding.text == says
    assert finding.remedy == "Add it with --data train=ADDRESS, or data={'train': ADDRESS}."


def test_a_dataframe_is_refused_with_what_to_do():
    with pytest.raises(InvalidSpec) as refused:
        parse_sources({"train": pd.DataFrame({"x": [1]})})
    assert refused.value.code == "data-not-an-address"
    assert "dataframe.write.parquet(" in refused.value.hint


def test_a_mount_is_a_warning():
    finding = found("1", {"train": "blob://account/data?mode=mount"})["data-mounted"]
    assert finding.text == "train is mounted, so every epoch reads over the network."


def test_code_without_data_has_no_row():
    checks = preflight.report(capture_cell("1", {}), JobSpec(id="", name="")).checks
    assert "Data sources" not in [check.name for check in checks]
