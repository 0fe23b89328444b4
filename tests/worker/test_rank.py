"""Cells, functions and scripts in real ranks: values, exit codes and signals."""

import signal
import sys
import textwrap
import time

import pytest

from tests.worker import ranks


def test_a_rank_says_hello_runs_and_returns_its_value(folder):
    ended = ranks.run(folder.cell("print('hello')\nx = 2\n{'b': x, 'a': [1, x]}"), rank=1, size=4)
    assert ended.code == 0, ended.err
    assert (ended.out, ended.err) == ("hello\n", "")
    hello, result = ended.reports
    assert hello["type"] == "hello"
    assert hello["python"] == sys.version.split()[0]
    assert hello["host"] == "node-a"
    assert hello["versions"]["torch"].startswith("2")
    assert abs(hello["t"] - time.time()) < 600
    assert (result["ok"], result["repr"], result["error"]) == (True, "{'b': 2, 'a': [1, 2]}", None)
    assert folder.value(rank=1) == {"b": 2, "a": [1, 2]}
    assert result["bytes"] == (folder.path / "results" / "rank-1.pkl").stat().st_size
    assert [path.name for path in (folder.path / "results").iterdir()] == ["rank-1.pkl"]


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("1 + 1;", None),
        ("1 + 1  ;  # nothing", None),
        ("1 + 1  # ; shown", 2),
        ("x = 3", None),
        ("", None),
        ("# only a comment", None),
        ("if True:\n    5", None),
        ("(\n  6\n)", 6),
        ("(6);", None),
        ("'ö;'", "ö;"),
        ("x = 'ö'; x", "ö"),
        ("f'{1};'\r\n", "1;"),
        ("from __future__ import annotations\ndef f(x: Missing): return 7\nf(0)", 7),
        ("def f():\n    return x\nx = 8\nf()", 8),
        ("__name__", "__main__"),
    ],
)
def test_the_last_expression_is_the_value(folder, code, value):
    ended = ranks.run(folder.cell(code))
    assert ended.code == 0, ended.err
    assert folder.value() == value


def test_processes_that_a_script_spawns_can_import_it(folder, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
    """)
    )
    ended = ranks.run(folder.script(script))
    assert (ended.code, ended.out) == (0, "[2, 4]\n"), ended.err


@pytest.mark.parametrize(
    ("end", "code", "ok", "message"),
    [
        ("sys.exit()", 0, True, None),
        ("sys.exit(0)", 0, True, None),
        ("sys.exit(3)", 3, False, "3"),
        ("sys.exit('no data')", 1, False, "no data"),
    ],
)
def test_sys_exit_keeps_its_code(folder, end, code, ok, message):
    ended = ranks.run(folder.cell(f"import sys\n{end}"))
    assert ended.code == code
    assert ended.result["ok"] is ok
    if ok:
        assert folder.value() is None
    else:
        assert (ended.error["type"], ended.error["message"]) == ("SystemExit", message)
        assert ended.error["frames"][-1]["line"] == 2
    assert ended.err == ("no data\n" if message == "no data" else "")


def interrupt(folder, code, **more):
    process = ranks.start(folder.cell(code), **more)
    line = process.stdout.readline()
    while b"ready" not in line:
        line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    return ranks.end(process)


def test_an_interrupt_tells_where_and_ends_with_130(folder):
    ended = interrupt(folder, "import time\n\nprint('ready'); time.sleep(300)")
    assert ended.code == 130
    assert ended.error["type"] == "KeyboardInterrupt"
    assert ended.err == "Interrupted in Cell [7] in quickstart.ipynb, line 3.\n"


def test_a_rank_started_with_interrupts_ignored_still_handles_them(folder):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ended = interrupt(folder, "import time\n\nprint('ready'); time.sleep(300)")
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.code == 130


def test_a_value_that_cannot_be_pickled_is_returned_as_text(folder):
    ended = ranks.run(folder.cell("import threading\n{'lock': threading.Lock()}"))
    assert (ended.code, ended.result["ok"], ended.result["bytes"]) == (0, True, 0)
    assert ended.result["repr"].startswith("{'lock': <unlocked _thread.lock object")
    (note,) = ended.of("note")
    assert "dict, which cannot be pickled (TypeError: cannot pickle '_thread.lock' object)" in note["text"]
    assert list((folder.path / "results").iterdir()) == []


def test_a_value_whose_text_raises_is_still_delivered(folder):
    code = "class Odd(Exception):\n    def __repr__(self):\n        raise ValueError\nOdd()"
    ended = ranks.run(folder.cell(code))
    assert (ended.code, ended.result["ok"]) == (0, True), ended.err
    assert "Odd" in ended.result["repr"]


def test_bars_of_rich_are_printed_once_also_where_a_kernel_has_forced_colours(folder):
    code = """
from rich.progress import Progress
with Progress(refresh_per_second=1000) as progress:
    for name in ("one", "two"):
        for _ in progress.track(range(50), description=name):
            progress.refresh()
"""
    ended = ranks.run(folder.cell(code), FORCE_COLOR="1", TERM="xterm-color")
    assert ended.code == 0, ended.err
    assert [ended.out.count(name) for name in ("one ", "two ", "100%")] == [1, 1, 2]
    assert "\x1b[35m" in ended.out
    assert "\x1b[1A" not in ended.out


def show(value):
    display(value)  # noqa: F821 - a notebook's built-in name
    return value


def test_display_shows_text_in_a_function_too(folder):
    ended = ranks.run(folder.function(show, ("seen",), {}))
    assert (ended.code, ended.out) == (0, "seen\n"), ended.err


def test_a_display_of_the_notebook_s_own_is_the_one_that_is_called(folder):
    ended = ranks.run(folder.cell("display + 1", values={"display": 41}))
    assert ended.code == 0, ended.err
    assert folder.value() == 42


def test_any_character_can_be_printed(folder):
    ended = ranks.run(folder.cell("print('ö\\ud800')"), LC_ALL="C", PYTHONUTF8="0")
    assert (ended.code, ended.out) == (0, "ö\\ud800\n"), ended.err


def test_without_a_nonce_a_rank_runs_by_hand(folder):
    ended = ranks.run(folder.cell("from distdl_jupyter import log\nlog(loss=0.5)"), DISTDL_NONCE="")
    assert (ended.code, ended.out) == (0, "step 0  loss 0.5\n")


def test_a_missing_working_directory_is_named(folder):
    folder.cell("1")
    payload = folder.path / "payload.json"
    payload.write_text(payload.read_text().replace(f'"{folder.path}"', '"/nowhere"'))
    ended = ranks.run(folder)
    assert ended.code == 1
    assert ended.error["message"].startswith("Cannot change to the job's working directory /nowhere on ")
