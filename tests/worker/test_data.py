"""Where a rank finds its data."""

from pathlib import Path

import pytest

from distdl_jupyter import data_path


def test_the_folder_that_the_stager_told(monkeypatch):
    monkeypatch.setenv("DISTDL_DATA_TRAIN", "/mnt/fast/train")
    assert data_path("train") == data_path("Train") == Path("/mnt/fast/train")


def test_outside_of_a_job_it_says_how_it_is_given(monkeypatch):
    monkeypatch.delenv("DISTDL_JOB_ID", raising=False)
    with pytest.raises(LookupError, match=r"works only in a job.*blob://account/container/prefix"):
        data_path("train")


def test_a_name_that_the_job_was_not_given_is_answered_with_those_it_has(monkeypatch):
    monkeypatch.setenv("DISTDL_JOB_ID", "20261121-120000-aaaaa")
    monkeypatch.setenv("DISTDL_DATA_TRAIN", "/x")
    with pytest.raises(LookupError, match=r"Unknown data source 'test'\. The job has train\."):
        data_path("test")
