"""The contract of clusters notices what it is there for: each cheat breaks it in one way, and one test says so."""

import gc
import warnings
from pathlib import Path

import pytest

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.node import processes
from distdl_jupyter.testing import ClusterContract, DataContract
from tests import plugin
from tests.testing import cheats


@pytest.fixture(autouse=True)
def installed_cheats(tmp_path, monkeypatch, distdl_home):
    plugin.install(tmp_path, monkeypatch, Path(cheats.__file__).read_text(), cheats.POINTS)
    yield
    plugin.forget()
    for folder in JobStore().folders():
        processes.kill_job(folder.id)
    with warnings.catch_warnings():
        # Nobody waited for what a cheat had started; Python tells so when it forgets the process, here and not later.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize(
    ("cheat", "test", "words"),
    [
        ("twice", "ranks_run_and_their_codes_output_and_reports_are_told", "was reported twice"),
        ("mixed", "ranks_run_and_their_codes_output_and_reports_are_told", "rank 0"),
        ("careless", "a_signal_ends_every_process_and_is_named", ""),
        ("blind", "a_job_is_swept_by_its_handle", ""),
    ],
)
def test_a_cheat_is_noticed(cheat, test, words):
    contract = type("Checked", (ClusterContract,), {"name": cheat, "timeout": 3.0})()
    with pytest.raises((AssertionError, DistDLError)) as noticed:
        getattr(contract, f"test_{test}")()
    assert words in str(noticed.value)


def test_a_cheat_with_data_is_noticed():
    contract = type("Checked", (DataContract,), {"name": "heedless", "timeout": 3.0})()
    with pytest.raises((AssertionError, DistDLError), match="ranks started without their data"):
        contract.test_without_its_data_no_rank_runs()


def test_a_label_that_does_not_exist_is_named():
    contract = type("Checked", (ClusterContract,), {"name": "twcie", "timeout": 5.0})()
    with pytest.raises(DistDLError, match="twice"):
        contract.test_it_is_called_as_its_entry_point_and_has_a_title()
