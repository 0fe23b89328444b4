"""The contract of clusters detects what it is there for: each cluster breaks it in one way, and one test fails."""

import gc
import warnings
from pathlib import Path

import pytest

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.node import processes
from distdl_jupyter.testing import ClusterContract
from tests import plugin
from tests.testing import cheats


@pytest.fixture(autouse=True)
def installed_cheats(tmp_path, monkeypatch, distdl_home):
    plugin.install(tmp_path, monkeypatch, Path(cheats.__file__).read_text(), cheats.POINTS)
    yield
    plugin.forget()
    for folder in JobStore().list_folders():
        processes.kill_job(folder.id)
    with warnings.catch_warnings():
        # A cheat does not wait for its processes. Python warns of that when it frees them, which is done here.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize(
    ("cheat", "test", "text"),
    [
        ("twice", "exit_codes_output_and_reports_of_ranks_arrive", "was reported twice"),
        ("mixed", "exit_codes_output_and_reports_of_ranks_arrive", "rank 0"),
        ("careless", "a_signal_ends_every_process_and_is_named", ""),
        ("blind", "a_job_is_swept_by_its_handle", ""),
        ("twcie", "its_name_is_that_of_its_entry_point_and_texts_are_one_line", "twice"),
    ],
)
def test_a_broken_promise_is_noticed(cheat, test, text):
    checked = type("Checked", (ClusterContract,), {"name": cheat, "timeout": 3.0})()
    with pytest.raises((AssertionError, DistDLError)) as caught:
        getattr(checked, f"test_{test}")()
    assert text in str(caught.value)
