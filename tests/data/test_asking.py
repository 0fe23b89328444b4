"""Data and outputs as words: on a magic's line, on the command line, for clusters that bring none."""

import pytest

from distdl_jupyter.capture import capture_cell
from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import new_id
from distdl_jupyter.data.staging import JobStaging
from distdl_jupyter.form.arguments import cell_parser, job_options
from distdl_jupyter.jobs import jobspec

LINE = "--data train=blob://account/data/cifar?shard --data labels=labels --outputs blob://account/runs/"


def spec_of(line, **defaults):
    options = job_options(cell_parser().parse(line), defaults)
    return jobspec.build(capture_cell("1", {}), options, id_=new_id())[0]


def test_a_magic_line_names_sources_and_outputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels").mkdir()
    spec = spec_of(LINE)
    train, labels = spec.data
    assert (train.url, train.shard) == ("blob://account/data/cifar?shard", True)
    assert labels.path == str(tmp_path / "labels")
    assert spec.outputs == "blob://account/runs"
    assert jobspec.JobSpec.from_json(spec.to_json()) == spec


def test_a_default_of_the_kernel_counts_until_a_flag_is_given():
    given = {"data": {"train": "shared:/a"}}
    assert [one.url for one in spec_of("", **given).data] == ["shared:/a"]
    assert [one.url for one in spec_of("--data test=shared:/b", **given).data] == ["shared:/b"]


@pytest.mark.parametrize(
    ("given", "limit"), [("", None), ("5000", 5000), ("50 GB", 50_000_000_000), ("1.5T", 1_500_000_000_000), ("0", 0)]
)
def test_the_limit_of_the_cache_is_a_number_of_bytes_with_or_without_a_unit(monkeypatch, given, limit):
    monkeypatch.setenv("DISTDL_DATA_CACHE_BYTES", given)
    assert JobStaging(JobSpec(id=new_id(), name="n"), print, print).order(0)["limit_bytes"] == limit


def test_a_limit_of_the_cache_that_cannot_be_read_is_refused(monkeypatch):
    monkeypatch.setenv("DISTDL_DATA_CACHE_BYTES", "much")
    with pytest.raises(DataUnavailable, match="is 'much', but must be a number of bytes") as refused:
        JobStaging(JobSpec(id=new_id(), name="n"), print, print).prepare()
    assert refused.value.hint == "Set it to 50000000000 or 50 GB, or unset it."
