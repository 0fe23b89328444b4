"""That each benchmark can be run alone and all tell in the one format; nothing here measures."""

import importlib
import json
import sys

import pytest

from tests.benchmarks import report, results
from tests.benchmarks.report import Report


def told():
    table = Report("A thing", "ms", {"torch": "2"})
    table.compare("quick", [0.010, 0.030, 0.020], "other", [0.1, 0.1, 0.2], at_most=0.25)
    table.compare("slow", [0.2], "other", [0.1], at_most=1.0)
    table.value("absolute", [0.003], at_most=2)
    table.missing("quick", "absent", "is not installed")
    return table


@pytest.mark.parametrize("name", results.BENCHMARKS)
def test_a_benchmark_can_be_run_alone(name):
    module = importlib.import_module(f"tests.benchmarks.{name}")
    assert callable(module.measure)
    assert f"python -m tests.benchmarks.{name}" in module.__doc__, "its docstring says how to run it"


def test_a_ratio_is_median_by_median_and_its_spread_turn_by_turn():
    quick, slow, absolute, absent = told().rows
    assert (quick.ours, quick.theirs, quick.ratio, quick.turns) == pytest.approx((20.0, 100.0, 0.2, 3))
    assert quick.spread == pytest.approx((0.1, 0.3))
    assert (quick.met, slow.met, absolute.met, absent.met) == (True, False, False, None)
    assert slow.goal == "<= 1.00"
    assert absolute.goal == "<= 2.00 ms"


def test_turns_meet_the_same_moments_and_the_first_does_not_count():
    order = []
    ways = {"ours": lambda: order.append("ours"), "peer": lambda: order.append("peer") or 3.0}
    taken = report.interleaved(ways, 2)
    assert order == ["ours", "peer"] * 3
    assert len(taken["ours"]) == 2
    assert taken["peer"] == [3.0, 3.0]


def test_a_table_says_what_is_met_what_is_not_and_what_could_not_be_had(capsys, monkeypatch, tmp_path):
    file = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["bench", "--turns", "1", "--json", str(file)])
    report.main(lambda turns: [told()], turns=5)
    printed = capsys.readouterr().out
    assert "NOT MET" in printed
    assert "is not installed" in printed
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["name"] for row in rows] == ["quick", "slow", "absolute", "quick"]


def test_a_part_that_is_measured_anew_leaves_the_page_s_other_parts(tmp_path):
    page = tmp_path / "RESULTS.md"
    records = list(told().records())
    for name in ("series", "first_step"):
        results.write_section(name, results.section(name, records), page)
    before = dict(results.sections(page.read_text()))
    results.write_section("series", results.section("series", records[:1]), page)
    after = dict(results.sections(page.read_text()))
    assert list(after) == ["first_step", "series"], "in the order of the page"
    assert after["first_step"] == before["first_step"]
    assert len(after["series"]) < len(before["series"])
    assert "| slow | 200 ms | other | 100 ms | 2.00 | 2.00-2.00 | 1 | <= 1.00, **not met** |" in before["series"]


def test_what_readme_claims_was_measured():
    readme, page = results.README.read_text(), results.PAGE.read_text()
    assert results.with_claims(readme, page) == readme
    row = next(line for line in page.splitlines() if line.startswith("| warm horovod | ") and "| horovodrun |" in line)
    other = row.replace(f" {row.split(' | ')[4]} ", " 0.5 ")
    assert "| 0.5 | horovodrun |" in results.with_claims(readme, page.replace(row, other))
