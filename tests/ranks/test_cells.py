"""Cells on persistent ranks: values, output, errors, one namespace per rank."""

import pytest

from distdl_jupyter import ranks
from distdl_jupyter.core.errors import InvalidSpec, JobFailed
from tests.conftest import wait_for
from tests.worker.test_pictures import png
from tests.written import all_written


def test_the_last_expression_comes_back_from_every_rank(shared):
    answer = shared.run("rank * 10 + world_size")
    assert dict(answer.values) == {0: 2, 1: 12}
    assert answer.errors == {}
    assert answer.check() is answer


def test_some_ranks_only(shared, told):
    assert dict(shared.run("rank", on=[1], on_event=told).values) == {1: 1}
    assert [done.rank for done in told.results()] == [1]


@pytest.mark.parametrize(("on", "sentence"), [([2], "Unknown rank 2"), ([], "No rank was given")])
def test_unknown_ranks_are_refused(shared, on, sentence):
    with pytest.raises(InvalidSpec, match=f"{sentence}: this session has ranks 0 to 1"):
        shared.run("1", on=on)


def test_names_imports_and_functions_stay(shared):
    shared.run("import math\ncount = rank\ndef more(by):\n    global count\n    count += by\n    return count")
    shared.run("more(math.floor(5.5))")
    assert dict(shared.run("count").values) == {0: 5, 1: 6}


def test_functions_of_one_cell_are_pickled_in_another(shared):
    shared.run("def double(x):\n    return 2 * x\nclass Pair:\n    def __init__(self, a): self.a = a")
    code = "import pickle\n(pickle.loads(pickle.dumps(double))(rank + 1), pickle.loads(pickle.dumps(Pair(rank))).a)"
    assert dict(shared.run(code).values) == {0: (2, 0), 1: (4, 1)}


def test_functions_of_the_worker_are_there(shared):
    shared.run("log(step=1, loss=0.5 + rank)\nprogress(3, 10, 'steps')")
    view = wait_for(lambda: (view := shared.job.view()).metrics.get("loss") and view.done == 3 and view)
    assert view.metrics["loss"].values == {0: 0.5, 1: 1.5}


def test_values_are_sent_to_ranks(shared):
    answer = shared.run("batch * rank", values={"batch": 4})
    assert dict(answer.values) == {0: 0, 1: 4}
    shared.push([1], lr=0.5, names=["a"])
    assert shared.pull("lr", on=[1]) == {1: 0.5}
    with pytest.raises(JobFailed, match="name 'lr' is not defined in this rank"):
        shared.pull("lr", on=[0])


def test_a_sent_function_shares_the_namespace_of_the_cells(shared):
    scope = {"__name__": "__main__"}
    exec("def scaled(x):\n    return x * factor", scope)
    scope["scaled"].__module__ = "__main__"
    shared.push(scaled=scope["scaled"])
    shared.run("factor = 10 + rank")
    assert dict(shared.run("scaled(2)").values) == {0: 20, 1: 22}


def test_values_that_cannot_be_sent_are_refused_before_anything_runs(shared):
    with pytest.raises(InvalidSpec, match="lock cannot be sent to the ranks"):
        shared.run("1", values={"lock": __import__("threading").Lock()})
    assert shared.state() == "idle"


def test_a_value_that_cannot_be_returned_comes_as_text_with_the_reason(shared, told):
    answer = shared.run("import threading\nthreading.Lock()", on=[0], on_event=told)
    value = answer.values[0]
    assert isinstance(value, ranks.UnsentValue)
    assert value.repr.startswith("<unlocked _thread.lock")
    assert "cannot be pickled" in value.why
    assert "so only its text is returned. End the cell" in value.why
    assert told.results()[0].unsent == value.why


def test_a_value_beyond_the_limit_stays_there(shared):
    value = shared.run("bytes(256 * 1024 * 1024)", on=[0]).values[0]
    assert isinstance(value, ranks.UnsentValue)
    assert value.why.startswith("The value is of type bytes and exceeds 256 MB")


def test_a_value_that_cannot_be_opened_here_says_so(shared):
    code = "class Bad:\n    def __reduce__(self): return (int, ('x',))\n    def __repr__(self): return 'bad'\nBad()"
    value = shared.run(code, on=[0]).values[0]
    assert isinstance(value, ranks.UnsentValue)
    assert value.repr == "bad"
    assert "cannot be loaded here (ValueError" in value.why


def test_a_value_is_shown_in_the_forms_that_it_has(shared, told):
    code = "class Table:\n    def _repr_html_(self): return '<b>t</b>'\n    def __repr__(self): return 'T'\nTable()"
    shared.run(code, on=[0], on_event=told)
    assert told.results()[0].shown == {"text/plain": "T", "text/html": "<b>t</b>"}


def test_output_comes_before_the_end_in_order_and_by_stream(shared, told):
    code = (
        "import os, sys\nprint('a', rank)\nos.system('echo from a child')\n"
        "print('ü 日本', file=sys.stderr)\nprint('b', end='')"
    )
    shared.run(code, on_event=told)
    for rank in (0, 1):
        assert told.text(rank) == f"a {rank}\nfrom a child\nb\n"
        assert told.text(rank, "err") == "ü 日本\n"
        last = next(n for n, event in enumerate(told) if isinstance(event, ranks.RankResult) and event.rank == rank)
        assert not [event for event in told[last:] if isinstance(event, ranks.Output) and event.rank == rank]


def test_a_cell_that_moves_its_descriptors_still_ends(shared, told):
    shared.run(
        "import os\nkept = os.dup(1)\nn = os.open(os.devnull, os.O_WRONLY)\nos.dup2(n, 1)", on=[0], on_event=told
    )
    shared.run("print('nobody hears this')", on=[0], on_event=told)
    shared.run("os.dup2(kept, 1)\nprint('back')", on=[0], on_event=told)
    assert told.text(0) == "back\n"


def test_what_threads_print_between_cells_goes_to_the_log_only(shared, told):
    shared.run("import threading\nthreading.Timer(0.3, lambda: print('late and alone')).start()", on=[0], on_event=told)

    def logged():
        return [e for e in all_written(shared.job.folder) if "late and alone" in str(e.get("text"))]

    wait_for(logged)
    shared.run("print('next')", on=[0], on_event=told)
    assert told.text(0) == "next\n"


def test_an_error_names_the_cell_and_its_line(shared, told):
    code = "def fail(x):\n    return 1 / x\n\nfail(rank)"
    raw = f"%%ranks\n\n{code}"
    answer = shared.run(code, label="In [7]", raw_cell=raw, on_event=told)
    assert dict(answer.values) == {1: 1.0}
    error = answer.errors[0]
    assert error["type"] == "ZeroDivisionError"
    assert [(f["label"], f["line"]) for f in error["frames"] if f["kind"] == "cell"] == [
        ("Cell [7]", 6),
        ("Cell [7]", 4),
    ]
    assert 'File "Cell [7]", line 4, in fail\n    return 1 / x' in error["traceback"]
    assert error["values"] == [["x", "0"]]
    with pytest.raises(JobFailed) as caught:
        answer.check()
    assert caught.value.rank == 0
    assert "Rank 0 of 2 failed first: ZeroDivisionError: division by zero, in Cell [7], line 4." in str(caught.value)


def test_a_function_of_an_earlier_cell_still_names_that_cell(shared):
    shared.run(
        "def early():\n    raise ValueError('x')", label="In [3]", raw_cell="def early():\n    raise ValueError('x')"
    )
    error = shared.run("early()", label="In [4]", raw_cell="early()", on=[0]).errors[0]
    assert [f["label"] for f in error["frames"] if f["kind"] == "cell"] == ["Cell [4]", "Cell [3]"]


def test_ranks_survive_errors_and_exits(shared):
    answer = shared.run("import sys\nsys.exit(3 if rank else 0)")
    assert answer.errors[1]["type"] == "SystemExit"
    assert dict(answer.values) == {0: None}
    assert dict(shared.run("rank").values) == {0: 0, 1: 1}


def test_input_is_refused_with_a_sentence(shared):
    error = shared.run("input('name? ')", on=[0]).errors[0]
    assert error["message"] == "input() is not available on ranks. Set the value in the cell instead."


def test_a_cell_may_await_and_keeps_its_loop(shared):
    shared.run("import asyncio\nawait asyncio.sleep(0)")
    code = "async def one():\n    return id(asyncio.get_running_loop())\nawait one()"
    assert shared.run(code, on=[0]).values[0] == shared.run("await one()", on=[0]).values[0]


def test_a_picture_is_a_line_of_its_cell_and_one_for_ranks_that_show_the_same(shared, told):
    code = f"class Square:\n    def _repr_png_(self):\n        return {png(8, 8)!r}\ndisplay('a', Square(), 'b')"
    shared.run(code, on_event=told)
    assert [told.text(rank) for rank in (0, 1)] == ["a\n[picture 1: 8×8]\nb\n"] * 2


def test_magics_and_invalid_python_are_refused(shared):
    with pytest.raises(InvalidSpec, match=r"Line 3 of the cell, `%time 1`, is an IPython magic"):
        shared.run("x = 1\n%time 1", raw_cell="%%ranks\nx = 1\n%time 1")
    with pytest.raises(SyntaxError) as caught:
        shared.run("x = 1\ny = = 2", raw_cell="%%ranks\nx = 1\ny = = 2")
    assert caught.value.lineno == 3
    assert shared.state() == "idle"


def test_a_cell_may_fork_and_use_processes(shared):
    code = "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p:\n    got = p.map(abs, [-1, -2])\ngot"
    assert dict(shared.run(code).values) == {0: [1, 2], 1: [1, 2]}


def test_the_job_tells_what_its_ranks_do(shared, told):
    seen = []

    def tell(event):
        told(event)
        seen.append(shared.job.view().phases[-1].detail)

    shared.run("print('x')\nimport time\ntime.sleep(0.5)", label="In [8]", on_event=tell)
    assert seen[0] == "runs In [8]"
    wait_for(lambda: shared.job.view().phases[-1].detail == "waits for a cell")
    assert shared.job.view().phases[-1].phase == "train"


def test_log_beyond_its_limit_still_shows_what_a_cell_prints(started, told):
    session = started(1, "plain", max_log_bytes=1000)
    session.run("for n in range(40): print('x' * 10_000)")
    session.run("print('more')", on_event=told)
    assert told.text(0) == "more\n"
