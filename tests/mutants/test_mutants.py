"""The list of mutants fits the code."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_text_of_each_kept_mutant_occurs_once_in_its_file():
    mutants = tomllib.loads((ROOT / "tests/mutants/kept.toml").read_text(encoding="utf-8"))["mutants"]
    assert mutants
    times = {(m["file"], m["text"]): (ROOT / m["file"]).read_text(encoding="utf-8").count(m["text"]) for m in mutants}
    assert {mutant: count for mutant, count in times.items() if count != 1} == {}
    assert [m for m in mutants if m["text"] == m["change"]] == []
