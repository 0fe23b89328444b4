"""The parts of the sidebar that need no page, run by Node: what rows say, who passes a filter, which rows are made."""

import json

import pytest

from tests.front_end import ROOT, bundle, evaluate

MODULES = (
    "jobtext",
    "../ui/format",
    "../form/schemafields",
    "sparkline",
    "study",
    "virtual",
    "cluster",
    "node",
    "costtext",
    "../ui/checks",
    "../form/datarow",
)
NOW = 1_800_000_000


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Return ``run(code, given)``: the value of a JavaScript expression in which ``ui`` holds the sidebar's modules."""
    folder = tmp_path_factory.mktemp("node")
    entry = folder / "entry.ts"
    entry.write_text("".join(f"export * from '{ROOT / 'src/sidebar' / name}';\n" for name in MODULES))
    bundled = bundle(entry, folder / "ui.mjs")

    def run(code, given=None):
        text = f"import * as ui from {json.dumps(str(bundled))}; const given = {json.dumps(given)};"
        return evaluate(f"{text} const f = () => {code}; console.log(JSON.stringify(f()));")

    return run


def row(**given):
    """A row as the server sends it."""
    fields = {
        "id": "20261121-024912-k3f9", "name": "digits", "state": "running", "message": "", "compute_target": "lab-3",
        "backend": "horovod-gloo", "node_count": 2, "process_count_per_node": 2, "created": NOW - 52, "ended": None,
        "last_sign": NOW, "done": None, "total": None, "remaining": None, "metric": "", "value": None, "spark": [],
        "notebook": "quickstart.ipynb", "can_rerun": False,
        "can_resume": False, "restarts": 0, "stalled": False, "queue": None,
        "waited": 0, "queued_since": None,
    }  # fmt: skip
    return fields | given


def line(node, one, *, heard=NOW, stale=False):
    given = {"row": one, "now": NOW, "heard": heard, "stale": stale}
    return node("ui.lineText(ui.secondLine(given.row, given.now, given.heard, given.stale))", given)


PROGRESS = {"done": 62, "total": 100, "remaining": 28}
STALLED = "No progress: rank 2 is in In [7], line 3."
PAST = {"created": NOW - 1142, "ended": NOW - 960}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (PROGRESS, "lab-3, 2 × 2, 62 %, 28 s left"),
        ({}, "lab-3, 2 × 2, running"),
        ({"message": "runs In [7]"}, "lab-3, 2 × 2, runs In [7]"),
        ({"message": "waits for a cell", "value": 0.3}, "lab-3, 2 × 2, waits for a cell"),
        ({"stalled": True, "message": STALLED}, STALLED),
        ({"state": "starting", "message": "waiting for rank 1"}, "lab-3, 2 × 2, waiting for rank 1"),
        ({"state": "queued"}, "lab-3, 2 × 2, queued"),
        ({"state": "queued", "message": "waiting for 2 GPUs", "queue": {"position": 1}}, "waiting for 2 GPUs"),
        ({"state": "completed", **PAST}, "lab-3, 2 × 2, 3 min 2 s, 16 min ago"),
        ({"state": "completed", "created": NOW - 50, "ended": NOW, "waited": 46.6},
         "lab-3, 2 × 2, ran 3 s, waited 47 s, just now"),
        ({"state": "canceled", "done": 18, "total": 100, **PAST}, "lab-3, 2 × 2, canceled at 18 %"),
        ({"state": "failed", "message": "KeyError on `rank` 2", **PAST}, "KeyError on rank 2, 16 min ago"),
        ({"state": "lost", "message": "supervisor ended, no result. Run it again.", "last_sign": NOW - 960},
         "supervisor ended, no result, 16 min ago"),
    ],
)  # fmt: skip
def test_the_second_line_of_a_row(node, changes, text):
    assert line(node, row(**changes)) == text


def test_the_time_that_is_left_counts_down_and_stops_with_the_server(node):
    assert line(node, row(**PROGRESS), heard=NOW - 10) == "lab-3, 2 × 2, 62 %, 18 s left"
    assert line(node, row(**PROGRESS), heard=NOW - 100) == "lab-3, 2 × 2, 62 %, 0 s left"
    told = line(node, row(**PROGRESS, stalled=True, message=STALLED), stale=True)
    assert told.startswith("lab-3, 2 × 2, 62 % at ")
    assert "left" not in told


def test_in_a_narrow_list_a_waiting_job_says_first_for_what(node):
    waits = row(state="queued", message="waiting for 2 GPUs, held by digits", queue={"position": 1})
    parts = node(f"(({{ tell, more }}) => [tell, more])(ui.secondLine(given, {NOW}, {NOW}, false))", waits)
    assert parts == ["waiting for 2 GPUs", "held by digits"]


def test_a_study_is_counted_as_the_one_row_that_it_is(node):
    group = {"id": "s1", "kind": "sweep", "name": "x", "size": 9, "value": None, "metric": "", "maximize": False}
    trials = [row(id=f"t{number}", group=group) for number in range(9)]
    items = [{"row": one, "heard": NOW} for one in [*trials, row(id="a"), row(id="b", state="failed")]]
    given = {"items": items, "study": row(id="s1", group=group)}
    studies = "new Map([['s1', given.study]])"
    assert node(f"ui.rowCount(given.items, {studies}, () => true)", given) == 3
    assert node(f"ui.rowCount(given.items, {studies}, (row) => ui.passes(row, 'failed'))", given) == 1


@pytest.mark.parametrize(
    ("sentence", "plain"),
    [("Run `distdl rerun k3f9`.", "Run distdl rerun k3f9."), ("`a`, `b`", "a, b"), ("a ` b", "a ` b"), ("``", "")],
)
def test_toasts_and_tooltips_show_the_names_without_their_backticks(node, sentence, plain):
    assert node("ui.unquoted(given)", sentence) == plain


def test_what_is_past_is_told_by_the_day_when_it_is_long_ago(node):
    assert node("ui.moment(given, given + 90)", NOW) == "1 min ago"
    assert node("ui.moment(given, given + 86400)", NOW).startswith("yesterday ")
    assert ":" in node("ui.moment(given, given + 5 * 86400)", NOW)


@pytest.mark.parametrize(
    ("changes", "value", "label"),
    [
        ({"metric": "loss", "value": 0.1138}, "0.114", "loss"),
        ({"created": NOW - 64}, "1 min", "elapsed"),
        ({"created": NOW - 50, "waited": 40}, "10 s", "elapsed"),
        ({"state": "queued", "created": NOW - 50, "queued_since": NOW - 49}, "49 s", "waiting"),
        ({"state": "failed"}, "", ""),
    ],
)
def test_the_figure_is_the_metric_or_the_time_that_it_runs_or_waits(node, changes, value, label):
    assert node(f"ui.figure(given, {NOW})", row(**changes)) == {"value": value, "label": label}


def test_every_word_of_a_search_must_be_found(node):
    matches = "given[1].every ? ui.matches(given[0], given[1]) : null"
    for words, found in (
        (["digits"], True),
        (["k3f9", "gloo"], True),
        (["lab-3", "torch"], False),
        (["running"], True),
        ([], True),
    ):
        assert node(matches, [row(), words]) is found


def test_a_filter_lets_the_states_through_that_it_names(node):
    states = ["queued", "preparing", "starting", "running", "canceling", "completed", "failed", "canceled", "lost"]
    passing = "given[0].filter((row) => ui.passes(row, given[1])).map((row) => row.state)"
    rows = [row(state=state) for state in states]
    assert node(passing, [rows, "all"]) == states
    assert node(passing, [rows, "active"]) == states[:5]
    assert node(passing, [rows, "failed"]) == ["failed"]


def test_only_a_job_older_than_a_minute_is_asked_about_unless_the_user_wants_otherwise(node):
    asks = "['minute', 'always', 'never'].map((setting) => ui.asksBeforeCancel(given, %d, setting))"
    assert node(asks % NOW, row(created=NOW - 59)) == [False, True, False]
    assert node(asks % NOW, row(created=NOW - 61)) == [True, True, False]


def test_a_gap_in_a_small_curve_is_a_gap(node):
    assert node("ui.pathOf([[0, 1], [2, 3], null, [4, 5], [6, 7]])") == "M0.0 1.0L2.0 3.0M4.0 5.0L6.0 7.0"


def test_two_values_are_a_curve_and_one_is_not(node):
    assert node("ui.places([3]).length") == 0
    (left, low), (right, high) = node("ui.places([1, 2])")
    assert left < right
    assert low > high


def test_only_rows_near_the_window_are_made(node):
    track = (
        "(() => { const track = new ui.Track(); track.lay(given);"
        " return [track.height, track.range(5200, 520), track.at(5200)]; })()"
    )
    height, (first, end), at = node(track, [52] * 1000)
    assert height == 52_000
    assert at == 100
    assert 90 <= first <= 100
    assert 110 <= end <= 120
    assert node(track, []) == [0, [0, 0], 0]
    # 240 px more than the window of three rows: the eighth row is the last that is seen of them.
    rows = "(() => { const track = new ui.Track(); track.lay(given); return track.range(0, 156); })()"
    assert node(rows, [52] * 1000) == [0, 8]


def node_of(state, gpus=2):
    return {
        "name": "node", "state": state, "detail": "", "gpus": gpus, "gpu_name": "L4", "python": "", "cores": 0,
        "load": None, "ranks": None, "jobs": [],
    }  # fmt: skip


def test_a_node_says_what_machine_it_is_as_far_as_that_is_known(node):
    words = "ui.machineWords(given)"
    assert node(words, node_of("idle")) == ""
    known = node_of("busy") | {"python": "3.11.7", "cores": 8, "load": 0.44, "ranks": 2}
    assert node(words, known) == "Python 3.11.7, 8 cores, load 0.4, 2 ranks"
    assert node(words, known | {"cores": 1, "load": 0.0, "ranks": 0}) == "Python 3.11.7, 1 core, load 0.0"


@pytest.mark.parametrize(
    ("remedy", "command"),
    [
        (
            "Install the same version: ssh node-c python3 -m pip install torch",
            "ssh node-c python3 -m pip install torch",
        ),
        ("Check that the host is on and reachable: ssh -F /a/b node-c true.", "ssh -F /a/b node-c true"),
        ("pip install 'distdl-jupyter[ray]'", "pip install 'distdl-jupyter[ray]'"),
        ("Free space: 5 GB are enough for most jobs.", ""),
        ("Ask its administrator.", ""),
    ],
)
def test_of_a_remedy_only_the_command_is_copied(node, remedy, command):
    assert node("ui.commandOf(given)", remedy) == command


def test_an_option_is_named_as_people_write_it(node):
    names = ["ssh_config", "gpus_per_node", "time_limit", "qos"]
    assert node("given.map(ui.readable)", names) == ["SSH config", "GPUs per node", "Time limit", "QoS"]


def test_a_cluster_says_how_much_of_it_is_up(node):
    def told(nodes, **given):
        cluster = {"nodes": nodes, "active_jobs": 0} | given
        return node("ui.summary(given)", cluster)

    assert told([node_of("idle", 0)]) == "idle"
    assert told([node_of("busy", 0)], active_jobs=2) == "2 jobs"
    assert told([node_of("busy"), node_of("idle"), node_of("down")]) == "2 of 3 nodes, 4 of 6 GPUs"
    assert told([node_of("down", 0)]) == "0 of 1 node"
    assert told([node_of("idle", 4)] * 2, machines={"max_nodes": 4}) == "2 of 4 nodes up, 8 GPUs"


def test_what_is_typed_becomes_a_value_or_a_sentence(node):
    parse = "(() => { try { return ui.parse(...given) ?? null; } catch (error) { return error.message; } })()"
    assert node(parse, ["4", "integer", {"type": "integer", "minimum": 1}]) == 4
    assert node(parse, ["0", "integer", {"type": "integer", "minimum": 1}]) == "Enter 1 or more."
    assert node(parse, ["8", "integer", {"type": "integer", "maximum": 8}]) == 8
    assert node(parse, ["9", "integer", {"type": "integer", "maximum": 8}]) == "Enter 8 or less."
    assert node(parse, ["2.5", "integer", {"type": "integer"}]) == "Enter an integer."
    assert node(parse, ["a, b\nc", "list", {"type": "array"}]) == ["a", "b", "c"]
    assert node(parse, ["A=1\nB=x=y", "pairs", {"type": "object"}]) == {"A": "1", "B": "x=y"}
    assert node(parse, ["nothing", "pairs", {"type": "object"}]) == "Enter NAME=VALUE, one per line."
    assert node(parse, ["=1", "pairs", {"type": "object"}]) == "Enter NAME=VALUE, one per line."
    assert node(parse, ["  ", "text", {"type": "string"}]) is None


def test_what_several_clusters_cost_is_known_where_it_is_known_of_all_in_one_currency(node):
    def bill(*clusters):
        keys = ("billed", "cost_per_hour", "currency")
        return node("ui.billWords(ui.total(given))", [dict(zip(keys, one, strict=True)) for one in clusters])

    assert bill((0, None, "")) == ""
    assert bill((1, 1.5, "USD"), (0, None, "")) == "1 node is up and costs money: 1.50 USD/h"
    assert bill((1, 1.5, "USD"), (2, 2.0, "USD")) == "3 nodes are up and cost money: 3.50 USD/h"
    assert bill((1, 1.5, "USD"), (2, None, "USD")) == "3 nodes are up and cost money: price unknown"
    assert bill((1, 1.5, "USD"), (2, 2.0, "EUR")) == "3 nodes are up and cost money: price unknown"


@pytest.mark.parametrize(
    ("place", "normalized"),
    [
        ("blob://a/c/p", ("blob://a/c/p", "download", False)),
        ("blob://a/c?shard", ("blob://a/c", "download", True)),
        ("blob://a/c?mode=mount&shard=true", ("blob://a/c", "mount", True)),
        ("blob://a/c?mode=other", ("blob://a/c?mode=other", "download", False)),
        ("blob://a/c?sig=abc", ("blob://a/c?sig=•••", "download", False)),
        ("shared:/mnt?shard", ("shared:/mnt?shard", "download", False)),
    ],
)
def test_what_is_typed_behind_a_place_becomes_what_is_chosen_beside_it(node, place, normalized):
    row = {"name": "data", "address": place, "shard": False, "mode": "download"}
    assert node("(({address, mode, shard}) => [address, mode, shard])(ui.normalizeRow(given))", row) == list(normalized)
    chosen = {**row, "address": "blob://a/c?mode=download", "shard": True}
    assert node("ui.normalizeRow(given)", chosen) == {**chosen, "address": "blob://a/c"}
