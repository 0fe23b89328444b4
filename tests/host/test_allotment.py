"""What only a node of an allocation knows, put into the plan."""

import json
import socket

import pytest

from distdl_jupyter.host import allotment, meeting
from distdl_jupyter.host.meeting import Meeting, NoMeeting


def place(tmp_path, monkeypatch, **plan):
    given = {"job": "j", "python": "python3", "ranks": 2, "per_node": 2, "ports": 1, "common": {}, "environments": [],
             "services": [], "launcher": None}  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps({**given, **plan}))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "")
    monkeypatch.setenv("SLURMD_NODENAME", "node-x")
    return allotment.Place(tmp_path)


def test_words_are_filled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "8")
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    here = place(tmp_path, monkeypatch)
    here.learn(Meeting("127.0.0.1", "127.0.0.0/8", (20_001, 20_002)))
    assert here.fill("@address@:@port-1@ @interface@ @network@ @cores@") == "127.0.0.1:20002 lo 127.0.0.0/8 4"


@pytest.mark.parametrize(
    ("plan", "given", "wanted"),
    [({"CUDA_VISIBLE_DEVICES": "0,1", "DISTDL_GPU": "1"}, "2,3", {"CUDA_VISIBLE_DEVICES": "2,3", "DISTDL_GPU": "3"}),
     ({"CUDA_VISIBLE_DEVICES": "0,1", "DISTDL_GPU": "0"}, "", {}), ({}, "2,3", {})],
)  # fmt: skip
def test_gpus_are_those_that_slurm_gave(tmp_path, monkeypatch, plan, given, wanted):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    here = place(tmp_path, monkeypatch, environments=[plan])
    assert here.of_rank(0) == {**plan, "DISTDL_HOST": "node-x", **wanted}


def test_all_others_hear_where_they_meet_or_why_they_do_not(tmp_path):
    meeting.tell(tmp_path, Meeting("10.0.0.1", "10.0.0.0/24", (5,)))
    assert meeting.wait(tmp_path) == Meeting("10.0.0.1", "10.0.0.0/24", (5,))
    meeting.tell(tmp_path, None, "The service did not start.")
    with pytest.raises(NoMeeting, match="did not start"):
        meeting.wait(tmp_path)


def test_a_first_node_that_never_begins_is_named(tmp_path):
    (tmp_path / meeting.FILE).write_text("")
    with pytest.raises(NoMeeting, match="rank 0"):
        meeting.wait(tmp_path, patience=0.2)


def test_an_unknown_node_is_named_with_the_reason():
    with pytest.raises(NoMeeting, match=r"nowhere\.invalid"):
        meeting.find(["nowhere.invalid"])


def test_one_node_meets_at_home():
    assert meeting.find([]).address == "127.0.0.1"
    assert meeting.interface("127.0.0.1") in {name for _, name in socket.if_nameindex()}
