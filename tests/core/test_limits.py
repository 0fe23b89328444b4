"""How many ranks a machine takes, and what it has too little of for them."""

import pytest

from distdl_jupyter.core import machine

GIGABYTE = 10**9


def test_the_rank_limit_is_refused_above_eight_ranks_per_core_and_never_below_sixty_four():
    assert machine.check_rank_count(64, 1) is None
    assert machine.check_rank_count(128, 16) is None
    short = machine.check_rank_count(129, 16)
    assert (short.level, short.message) == (
        "error", "129 processes are too many for 16 cores; the limit is 128",
    )  # fmt: skip
    assert short.remedy == "Use fewer processes, or set oversubscribe=True."


@pytest.mark.parametrize("allowed", [{"oversubscribe": True}, {"slots": 5000}])
def test_the_rank_limit_is_taken_where_it_is_asked_for(allowed):
    assert machine.check_rank_count(5000, 2, **allowed) is None
    assert machine.check_rank_count(5000, 2) is not None


TASKS = "600 processes need about 1,200 processes and threads, but only 7 are available"


@pytest.mark.parametrize(
    ("room", "level", "says"),
    [
        ({"files": 1199}, "error", "600 processes need about 1,200 open files, but only 1,199 are available"),
        ({"processes": 7}, "error", TASKS),
        ({"tasks": 7}, "error", TASKS),
        (
            {"memory": GIGABYTE}, "error",
            "600 processes need at least 6.0 GB of memory, but only 1.0 GB is available",
        ),
        (
            {"memory": 30 * GIGABYTE}, "warning",
            "Only 50 MB of memory is available for each process, and torch alone needs about 200 MB",
        ),
    ],
)  # fmt: skip
def test_shortage_is_told_with_its_remedy(room, level, says):
    (short,) = machine.find_shortages(600, room)
    assert (short.level, short.message) == (level, says)
    assert short.remedy.endswith(".")
    assert "limit of" not in short.remedy
    assert "out of memory" not in short.remedy


def test_one_process_needs_and_several_need():
    (short,) = machine.find_shortages(1, {"files": 1})
    assert short.message == "1 process needs about 2 open files, but only 1 are available"


def test_room_that_is_enough_or_unlimited_is_no_shortage():
    assert not list(
        machine.find_shortages(600, {"files": 1200, "processes": 1200, "tasks": 1200, "memory": 200 * GIGABYTE})
    )
    assert not list(machine.find_shortages(600, {"files": None, "processes": None, "tasks": None, "memory": None}))
