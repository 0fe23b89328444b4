"""Which rank failed first, told in sentences, and the exception that a cell ends with."""

from distdl_jupyter.ranks.answer import CellFailed, find_failures
from distdl_jupyter.ranks.view import OutputFold, render_text

FRAMES = [{"label": "Cell [7]", "line": 3, "kind": "cell"}]
KEY = {"type": "KeyError", "message": "'label'", "time": 10.0, "frames": FRAMES, "values_at": 0, "traceback": "Trace\n"}
PEER = {"type": "HorovodInternalError", "message": "Connection closed by peer", "time": 9.5, "frames": []}
INTERRUPT = {"type": "KeyboardInterrupt", "message": "", "time": 11.0, "frames": []}


def test_one_of_many_and_those_that_lost_it():
    found = find_failures({0: PEER, 2: KEY, 3: {**KEY, "time": 10.6}}, range(4))
    assert found.summary == "Rank 2 of 4 failed first: KeyError: 'label', in Cell [7], line 3."
    assert found.describe_others() == [
        "Rank 3: the same error.",
        "Rank 0: HorovodInternalError: Connection closed by peer.",
    ]


def test_all_alike():
    found = find_failures(dict.fromkeys(range(3), KEY), range(3))
    assert found.summary == "All 3 ranks failed with the same error: KeyError: 'label', in Cell [7], line 3."
    assert found.describe_others() == []
    assert find_failures({0: KEY, 1: KEY}, range(2)).subject == "Both ranks failed with the same error"
    ended = {**KEY, "message": "There is none."}
    assert find_failures({0: ended}, [0]).summary == "Rank 0 failed: KeyError: There is none, in Cell [7], line 3."


def test_an_interrupt_is_no_failure_of_its_own():
    found = find_failures({0: INTERRUPT, 1: INTERRUPT}, range(2))
    assert found.is_interrupt
    assert found.summary == "Interrupted on ranks 0-1."
    found = find_failures({0: INTERRUPT, 1: KEY}, range(2))
    assert (found.first, found.is_interrupt) == (1, False)


def test_the_exception_is_short_where_the_output_tells_the_rest():
    found = find_failures({0: KEY}, range(2))
    short = CellFailed(found, {0: KEY}, shown=True)._render_traceback_()
    assert short == ["CellFailed: Rank 0 of 2 failed first: KeyError: 'label', in Cell [7], line 3."]
    assert "Trace" in CellFailed(found, {0: KEY})._render_traceback_()


def test_as_plain_text():
    fold = OutputFold(range(2))
    fold.add(0, "out", "a\nb\n")
    fold.add(1, "out", "a\n")
    told = render_text(fold, find_failures({1: KEY}, range(2)), job="k3f9").splitlines()
    assert told == [
        "[0-1] a", "[0] b", "Rank 1 of 2 failed first: KeyError: 'label', in Cell [7], line 3.", "Trace"]  # fmt: skip
    fold.add(0, "out", "c\n" * 5000)
    assert render_text(fold, None, job="k3f9", newest=10).startswith(
        "4,993 earlier lines not shown. Print the whole log with %dist_logs k3f9"
    )
