"""The output of a cell on ranks: what is sent, how often, and that it can be read anywhere."""

import threading
import time
from types import SimpleNamespace

from IPython.lib.pretty import pretty

from distdl_jupyter.ranks import view
from distdl_jupyter.ranks.answer import find_failures
from distdl_jupyter.ranks.view import OutputFold
from distdl_jupyter.widgets.ranks import CellDisplay, RankValues, TerminalDisplay, ValuesByRank
from distdl_jupyter.worker.failure import describe
from distdl_jupyter.worker.frames import CellSources
from tests.conftest import wait_for

CODE = "batch = {'<image>': 1}\nfor step in range(3):\n    batch['label']\n"


def error():
    sources = CellSources()
    sources.add_all({"<cell>": {"text": CODE, "label": "Cell [7]", "cell": 7, "first_line": 2}})
    try:
        exec(compile(CODE, "<cell>", "exec"), {})
    except KeyError as found:
        return describe(found, sources)


class Sent(list):
    """What an output publishes."""

    def __call__(self, bundle, display_id, update):
        self.append((bundle, display_id, update))

    @property
    def plain(self):
        return self[-1][0]["text/plain"]


def test_a_short_cell_is_sent_once():
    sent = Sent()
    output = CellDisplay(range(2), "k3f9", publish=sent)
    for rank in range(2):
        output.add(rank, "out", "hello\n")
        output.mark_done(rank, None)
    output.finish()
    ((bundle, _, update),) = sent
    assert update is False
    assert bundle["text/plain"] == "[0-1] hello"
    assert "hello" in bundle["text/html"]


def test_a_long_cell_is_drawn_while_it_runs_as_one_display():
    sent = Sent()
    output = CellDisplay(range(2), "k3f9", publish=sent)
    output.add(0, "out", "begin\n")
    wait_for(lambda: sent and sent.plain == "[0] begin")
    output.mark_done(0, error())
    wait_for(lambda: "Rank 0 of 2 failed first" in sent.plain)
    assert "Rank 1 is still running" in sent.plain
    output.show_sentence("Rank 1 waits.")
    wait_for(lambda: sent.plain.endswith("Rank 1 waits."))
    output.finish()
    assert "waits" not in sent.plain
    assert "KeyError: 'label'" in sent.plain
    assert len({display for _, display, _ in sent}) == 1
    assert [update for *_, update in sent] == [False] + [True] * (len(sent) - 1)


def test_a_silent_cell_shows_that_it_runs():
    sent = Sent()
    output = CellDisplay(range(4), "k3f9", publish=sent)
    wait_for(lambda: sent and sent.plain.startswith("Ranks 0-3 are running, "))
    output.finish()
    assert sent.plain.startswith("Ran ")


def test_a_flood_is_drawn_seldom_and_its_end_is_kept():
    sent = Sent()
    output = CellDisplay(range(2), "k3f9", publish=sent)
    begin = time.monotonic()
    lines = 0
    while time.monotonic() - begin < 1 or lines < 2000:
        for rank in range(2):
            output.add(rank, "out", "".join(f"line {n}\n" for n in range(lines, lines + 200)))
        lines += 200
    spent = time.monotonic() - begin
    output.finish()
    assert len(sent) <= 20 * spent + 2
    assert all(len(bundle["text/html"]) < 50_000 for bundle, *_ in sent[:-1]), "while it runs the newest lines only"
    assert f"{2 * lines - 2000:,} earlier lines not shown. Print the whole log with %dist_logs k3f9" in sent.plain
    assert sent.plain.endswith(f"[0-1] line {lines - 1}")


def test_no_thread_stays():
    CellDisplay(range(2), "k3f9", publish=Sent()).finish()
    wait_for(lambda: "distdl-cell" not in {thread.name for thread in threading.enumerate()})


def test_quiet_shows_failures_only():
    sent = Sent()
    output = CellDisplay([0], "k3f9", quiet=True, publish=sent)
    output.add(0, "out", "secretly\n")
    output.mark_done(0, error())
    output.finish()
    assert "KeyError" in sent.plain
    assert "secretly" not in sent.plain


def test_a_terminal_gets_lines(capsys):
    output = TerminalDisplay(range(2))
    output.add(0, "out", "a\nb")
    output.add(1, "out", "c\n")
    output.finish()
    assert capsys.readouterr().out == "[0] a\n[1] c\n[0] b\n"


def test_what_ranks_say_is_text():
    fold = OutputFold(range(2))
    fold.add(0, "out", "<script>alert(1)</script>\n")
    html = view.render_cell(fold, find_failures({1: error()}, range(2)), job="k3f9")
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "➜" in html
    assert "batch[" in html
    assert "&#39;label&#39;]" in html


def test_an_interrupted_cell_says_which_ranks_stopped():
    interrupt = {"type": "KeyboardInterrupt", "message": "", "time": 11.0, "frames": []}
    html = view.render_cell(
        OutputFold(range(2)), find_failures(dict.fromkeys(range(2), interrupt), range(2)), job="k3f9"
    )
    assert "Interrupted on ranks 0-1." in html


def test_where_styles_are_taken_out_lines_stay_lines():
    fold = OutputFold([0, 1])
    fold.add(0, "out", "a\nb\n")
    fold.add(1, "out", "a\nb\n")
    html = view.render_cell(fold, job="k3f9")
    assert ">a\nb\n</pre>" in html
    assert ">0-1</span>" in html


FORMS = {0: {"text/plain": "0.25"}, 1: {"text/plain": "0.25"}, 2: {"text/plain": "tensor([1,\n 2])"}}


class Unopened(dict):
    """Values that must not be looked at."""

    def __getitem__(self, key):
        raise AssertionError(f"value {key} was opened only to be shown")


def test_values_are_folded_and_not_opened_to_be_shown():
    values = RankValues(SimpleNamespace(values=Unopened()), FORMS)
    assert pretty(values).splitlines() == ["[0-1] 0.25", "[2]   tensor([1,", "       2])"]
    assert pretty((1, values)) == "(1, [0.25, 0.25, tensor([1,\n 2])])"
    assert "0.25" in values._repr_html_()
    assert pretty(ValuesByRank(SimpleNamespace(values=Unopened()), {2: FORMS[2]})).startswith("[2] tensor")


def test_values_are_a_sequence_or_a_mapping():
    values = RankValues(SimpleNamespace(values={0: 1.5, 1: 2.5, 2: 0}), FORMS)
    assert values == [1.5, 2.5, 0]
    assert (values[1], values[-1], values[:2], len(values), sum(values)) == (2.5, 0, [1.5, 2.5], 3, 4.0)
    assert dict(ValuesByRank(SimpleNamespace(values={2: 7}), {2: FORMS[2]})) == {2: 7}


def test_a_table_and_a_picture_are_shown_as_such():
    forms = {0: {"text/plain": "x", "text/html": "<table></table>"}, 1: {"text/plain": "y", "image/png": "AAAA"}}
    values = RankValues(SimpleNamespace(values={0: 0, 1: 1}), forms)
    assert "<table></table>" in values._repr_html_()
    assert 'src="data:image/png;base64,AAAA"' in values._repr_html_()
