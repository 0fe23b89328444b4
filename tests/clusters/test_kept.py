import json
import os
import stat
import time

import pytest

from distdl_jupyter.clusters import kept
from distdl_jupyter.clusters.base import Check

WELL = (Check("node-a", "torch", "ok", "2.13.0"), Check("", "Ports", "ok", "every host reaches every other"))
RED = (*WELL, Check("node-b", "Clock", "error", "63 s ahead", "Set it."))


def age(name, seconds):
    path = kept._folder() / f"{name}.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "at": content["at"] - seconds}))


def test_what_was_found_is_there_for_another_process_and_for_this_user_alone(distdl_home):
    name = kept.key("ssh", {"hosts": "a,b"}, ["torch"])
    assert kept.recent(name) is None
    kept.keep(name, RED)
    found = kept.recent(name)
    assert found.checks == RED
    assert time.time() - found.at < 60
    (file,) = (distdl_home / "cache" / "checks").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_it_holds_for_these_hosts_and_needs_only():
    names = {
        kept.key("ssh", {"hosts": "a,b"}, ["torch"]),
        kept.key("ssh", {"hosts": "a,c"}, ["torch"]),
        kept.key("ssh", {"hosts": "a,b"}, ["horovod"]),
        kept.key("ssh", {"hosts": "a,b"}, ["torch"], ["mpirun"]),
        kept.key("slurm", {"hosts": "a,b"}, ["torch"]),
    }
    assert len(names) == 5
    assert kept.key("ssh", {"x": 1, "y": 2}, ["a", "b"]) == kept.key("ssh", {"y": 2, "x": 1}, ["b", "a"])


@pytest.mark.parametrize(("found", "good"), [(WELL, kept.GOOD_SECONDS), (RED, kept.RED_SECONDS)])
def test_it_is_good_for_minutes_and_red_for_less(found, good):
    kept.keep("k", found)
    age("k", good - 20)
    assert kept.recent("k").checks == found
    age("k", 40)
    assert kept.recent("k") is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"checks": [{"x": 1}], "at": 1, "format": 1}'])
def test_what_is_no_record_of_ours_counts_as_nothing(distdl_home, content):
    kept.keep("k", WELL)
    (kept._folder() / "k.json").write_text(content)
    assert kept.recent("k") is None


def test_a_clock_that_was_set_back_makes_nothing_young():
    kept.keep("k", WELL)
    age("k", -100)
    assert kept.recent("k") is None


def test_old_files_are_swept():
    kept.keep("old", WELL)
    path = kept._folder() / "old.json"
    os.utime(path, (time.time() - 2 * 86400,) * 2)
    kept.keep("new", WELL)
    assert [one.name for one in kept._folder().iterdir()] == ["new.json"]


def test_a_disk_that_takes_nothing_is_no_error(distdl_home):
    distdl_home.mkdir()
    (distdl_home / "cache").write_text("a file where the folder should be")
    kept.keep("k", WELL)
    assert kept.recent("k") is None
