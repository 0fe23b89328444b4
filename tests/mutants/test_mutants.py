"""The mutants' list fits the code, and a mutant leaves nothing behind."""

import tomllib

import pytest

from tests.mutants import record
from tests.mutants.copy import ROOT
from tests.mutants.record import Mutant, NotFound
from tests.mutants.touching import FURTHER, stages


def test_a_mutant_is_in_the_code_only_while_it_is_wanted(tmp_path):
    code = tmp_path / "code.py"
    code.write_text("a = 1\nb = 1\n")
    compiled = tmp_path / "__pycache__" / "code.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.touch()
    with Mutant("code-01", "code.py", before="b = 1\n", after="b = 2\n").inside(tmp_path):
        assert code.read_text() == "a = 1\nb = 2\n"
        assert not compiled.exists()
    assert code.read_text() == "a = 1\nb = 1\n"


@pytest.mark.parametrize("before", ["c", " = 1"])
def test_lines_that_do_not_stand_there_once_are_refused(tmp_path, before):
    (tmp_path / "code.py").write_text("a = 1\nb = 1\n")
    with pytest.raises(NotFound, match="code-01"), Mutant("code-01", "code.py", before, "").inside(tmp_path):
        pass
    assert (tmp_path / "code.py").read_text() == "a = 1\nb = 1\n"


def test_every_mutant_of_the_list_has_tests_that_touch_it():
    found = record.mutants()
    assert len(found) == 200
    for mutant in found.values():
        assert mutant.before != mutant.after
        assert stages(ROOT, mutant.file)
    assert record.equivalent().keys() <= found.keys()
    assert record.killers("quick").keys() | record.killers("all").keys() <= found.keys()


def test_the_folders_that_touch_a_file_are_there():
    named = {name for folders in FURTHER.values() for name in folders.split()}
    assert [name for name in sorted(named) if not (ROOT / "tests" / name).exists()] == []


def test_the_text_of_each_kept_mutant_occurs_once_in_its_file():
    mutants = tomllib.loads((ROOT / "tests/mutants/kept.toml").read_text(encoding="utf-8"))["mutants"]
    assert mutants
    times = {(m["file"], m["text"]): (ROOT / m["file"]).read_text(encoding="utf-8").count(m["text"]) for m in mutants}
    assert {mutant: count for mutant, count in times.items() if count != 1} == {}
    assert [m for m in mutants if m["text"] == m["change"]] == []
