"""Where each rank listens itself is read by all others."""

import json
import threading

import pytest

from distdl_jupyter.core.plan import RankPlace, late_seat
from distdl_jupyter.host import allotment, seats
from distdl_jupyter.host.meeting import Meeting, NoMeeting


def place(folder, monkeypatch, rank_ports):
    given = {"job": "j", "python": "python3", "ranks": 2, "per_node": 1, "ports": 0, "rank_ports": rank_ports,
             "common": {}, "environments": [], "services": [], "launcher": None}  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(given))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "")
    here = allotment.Place(folder)
    here.learn(Meeting("127.0.0.1", "127.0.0.0/8"))
    return here


def test_ranks_learn_each_others_ports_whoever_comes_first(tmp_path, monkeypatch):
    for rank in range(2):
        (tmp_path / f"rank-{rank}.seat").touch()
    both = [place(tmp_path, monkeypatch, 2) for _ in range(2)]
    sitting = [threading.Thread(target=one.sit, args=(rank, bool)) for rank, one in enumerate(both)]
    for one in sitting:
        one.start()
    for one in sitting:
        one.join(30)
    words = [late_seat(RankPlace(rank, rank, "", 0), 2) for rank in range(2)]
    text = " ".join(f"{address}:{first},{second}" for address, (first, second) in words)
    filled = [one.fill(text) for one in both]
    assert filled[0] == filled[1]
    assert "@" not in filled[0]
    ports = [port for pair in filled[0].split() for port in pair.partition(":")[2].split(",")]
    assert len(set(ports)) == 4, "each has its own"


def test_nobody_is_asked_where_no_rank_needs_a_port(tmp_path, monkeypatch):
    here = place(tmp_path, monkeypatch, 0)
    before = dict(here.words)
    here.sit(0, bool)
    assert here.words == before


def test_a_rank_that_never_begins_is_named(tmp_path):
    seats.tell(tmp_path, 0, "10.0.0.1", [5])
    with pytest.raises(NoMeeting, match="rank 1 has not begun"):
        seats.gather(tmp_path, 2, patience=0.3)
    with pytest.raises(NoMeeting, match="was stopped"):
        seats.gather(tmp_path, 2, stopped=lambda: True)
