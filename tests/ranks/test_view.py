"""What ranks print, folded: equal lines once, each rank's own order kept, whatever the order of arrival."""

import random

import pytest

from distdl_jupyter.core.humanize import format_spans, name_ranks
from distdl_jupyter.ranks.view import OutputFold


def shown(fold):
    return [f"[{format_spans(block.ranks)}] {text}" for block in fold.build_blocks() for _, text in block.rows]


def test_equal_lines_are_one_whoever_came_first_and_others_stand_in_order_of_rank():
    fold = OutputFold(range(4))
    for rank in (2, 0, 3, 1):
        fold.add(rank, "out", f"start\nrank {rank}\nend\n")
    assert shown(fold) == ["[0-3] start", "[0] rank 0", "[1] rank 1", "[2] rank 2", "[3] rank 3", "[0-3] end"]


def test_a_block_that_came_at_once_stays_together():
    fold = OutputFold(range(2))
    for rank in range(2):
        fold.add(rank, "out", f"tensor([[0.{rank}, 1],\n        [0.{rank}, 2]])\nready\n")
    assert [(block.ranks, len(block.rows)) for block in fold.build_blocks()] == [((0,), 2), ((1,), 2), ((0, 1), 1)]


def test_steps_stay_side_by_side_when_numbers_of_one_step_are_those_of_another_step_elsewhere():
    fold = OutputFold(range(3))
    for step in range(3):
        for rank in range(3):
            fold.add(rank, "out", f"step {step} of all\nloss {step + rank}\n")
    assert shown(fold)[4:8] == ["[0-2] step 1 of all", "[0] loss 1", "[1] loss 2", "[2] loss 3"]


def test_ranks_that_run_ahead_are_met_again():
    fold = OutputFold(range(2))
    for step in range(20):
        fold.add(0, "out", f"epoch {step}\nloss 0.{step}\n")
    fold.add(0, "err", "saving\n")
    for step in range(20):
        fold.add(1, "out", f"epoch {step}\nloss 0.{step + 7}\n")
    fold.add(1, "out", "done\n")
    fold.add(0, "out", "done\n")
    lines = shown(fold)
    assert [line for line in lines if "epoch" in line] == [f"[0-1] epoch {step}" for step in range(20)]
    assert lines[-2:] == ["[0] saving", "[0-1] done"]


def test_an_extra_line_of_one_rank_parts_nobody():
    fold = OutputFold(range(2))
    fold.add(0, "out", "a\nsaving\nb\nc\n")
    fold.add(1, "out", "a\nb\nc\n")
    assert shown(fold) == ["[0-1] a", "[0] saving", "[0-1] b", "[0-1] c"]


@pytest.mark.parametrize("seed", range(200))
def test_every_rank_can_be_read_as_it_printed(seed):
    chance = random.Random(seed)
    ranks = chance.randint(1, 4)
    fold, printed = OutputFold(range(ranks)), {rank: [] for rank in range(ranks)}
    for _ in range(chance.randint(1, 30)):
        rank = chance.randrange(ranks)
        lines = [chance.choice("abc") + str(chance.randrange(3)) for _ in range(chance.randint(1, 5))]
        printed[rank] += lines
        fold.add(rank, "out", "".join(f"{line}\n" for line in lines))
    for rank in range(ranks):
        assert [text for block in fold.build_blocks() if rank in block.ranks for _, text in block.rows] == printed[rank]


def test_pieces_may_end_anywhere():
    fold = OutputFold(range(2))
    for piece in ("he", "llo\nwo", "rld", "\n"):
        fold.add(0, "out", piece)
    fold.add(1, "out", "hello\nworld\n")
    assert shown(fold) == ["[0-1] hello", "[0-1] world"]


def test_a_line_without_an_end_is_shown_and_closed():
    fold = OutputFold(range(2))
    fold.add(0, "out", "x")
    fold.add(1, "out", "x")
    assert shown(fold) == ["[0-1] x"]
    fold.close()
    assert shown(fold) == ["[0-1] x"]
    assert fold.total == 2


def test_a_progress_bar_is_one_line_and_no_complaint():
    fold = OutputFold(range(2))
    for share in range(0, 101, 10):
        fold.add(0, "err", f"\r{share}%")
        fold.add(1, "err", f"\r{min(share, 90)}%")
    assert [row for block in fold.build_blocks() for row in block.rows] == [("out", "100%"), ("out", "90%")]
    fold.add(0, "err", "\nfailed\n")
    assert ("err", "failed") in [row for block in fold.build_blocks() for row in block.rows]


def test_of_a_flood_the_newest_are_kept_and_folded_and_all_are_counted():
    fold = OutputFold(range(3))
    for rank in range(3):
        for begin in range(0, 30_000, 3000):
            fold.add(rank, "out", "".join(f"line {n}\n" for n in range(begin, begin + 3000)))
    assert fold.total == 90_000
    (block,) = fold.build_blocks()
    assert block.ranks == (0, 1, 2)
    assert [text for _, text in block.rows] == [f"line {n}" for n in range(29_000, 30_000)]
    assert fold.count_omitted() == 87_000
    assert sum(len(block.rows) for block in fold.build_blocks(50)) == 50


@pytest.mark.parametrize(
    "pieces",
    [
        # The last line that rank 0 shares is one of rank 1's alone, and rank 2 is far ahead of both.
        [(0, 10), (1, 10), (2, 3500), (0, 1500), (2, 4000), (0, 3500), (1, 4000), (0, 4000)],
        # Rank 2 comes back far behind the lines that it shared with rank 1, which are gone.
        [(1, 2600), (2, 1700), (0, 3050), (2, 4000), (0, 4000), (1, 4000)],
    ],
)
def test_of_a_flood_the_newest_are_folded_however_far_apart_the_ranks_are(pieces):
    fold, told = OutputFold((0, 1, 2)), [0, 0, 0]
    for rank, until in pieces:
        fold.add(rank, "out", "".join(f"line {n}\n" for n in range(told[rank], until)))
        told[rank] = until
    assert shown(fold) == [f"[0-2] line {n}" for n in range(3000, 4000)]


def test_what_would_break_a_screen_is_made_safe():
    fold = OutputFold([0])
    fold.add(0, "out", "\x1b[31mred\x1b[0m\x07\n")
    assert [row for block in fold.build_blocks() for row in block.rows] == [("out", "red␇")]


def test_ranks_in_words():
    assert format_spans([0, 1, 2, 3]) == "0-3"
    assert format_spans([5, 0, 2, 1]) == "0-2,5"
    assert name_ranks([2]) == "rank 2"
    assert name_ranks([0, 2]) == "ranks 0,2"
