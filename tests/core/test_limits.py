"""How many ranks a machine takes."""

import pytest

from distdl_jupyter.core import machine


def test_the_rank_limit_is_refused_above_eight_ranks_per_core_and_never_below_sixty_four():
    assert machine.check_rank_count(64, 1) == machine.check_rank_count(128, 16) == ("", "")
    assert machine.check_rank_count(129, 16) == (
        "129 processes are too many for 16 cores; the limit is 128", "Use fewer processes, or set oversubscribe=True.",
    )  # fmt: skip


@pytest.mark.parametrize("allowed", [{"oversubscribe": True}, {"slots": 5000}])
def test_the_rank_limit_is_taken_where_it_is_asked_for(allowed):
    assert machine.check_rank_count(5000, 2, **allowed) == ("", "")
    assert machine.check_rank_count(5000, 2)[0]
