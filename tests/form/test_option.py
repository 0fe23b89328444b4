"""A job option is one declaration: the form, the command line, the magics and the defaults of a kernel read it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from distdl_jupyter import cli
from distdl_jupyter.core.options import DEFAULTS, OPTIONS, OptionInfo
from distdl_jupyter.form.arguments import get_job_options, make_cell_parser, make_sweep_parser
from distdl_jupyter.jobs import jobspec
from distdl_jupyter.magic.commands import update_defaults
from tests.form.page import Page, asked

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode

TEA = OptionInfo(
    check=OPTIONS["priority"].check,
    help="Minutes of tea before the start",
    metavar="N",
    value_type=int,
    label="Tea minutes",
)


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIONS, "tea_minutes", TEA)
    monkeypatch.setitem(DEFAULTS, "tea_minutes", None)
    planned = jobspec.plan_spec  # the spec has no such field

    def without(draft: CapturedCode, options: dict[str, Any], **more: Any) -> Any:
        return planned(draft, {name: value for name, value in options.items() if name != "tea_minutes"}, **more)

    monkeypatch.setattr(jobspec, "plan_spec", without)


def train() -> None: ...


def test_the_form_has_a_field_for_it_and_reads_and_writes_its_flag() -> None:
    shown = asked("%%distributed -p 1 --tea-minutes 5\n1")
    field = next(one for one in shown["choices"]["options"] if one["name"] == "tea_minutes")
    assert (field["label"], field["help"], field["kind"]) == ("Tea minutes", TEA.help, "number")
    assert shown["values"]["other_options"] == {"tea_minutes": 5}
    assert "--tea-minutes 5" in shown["magic"]
    assert shown["options"]["tea_minutes"] == 5
    form = Page(train, tea_minutes=3)
    form.choose(other_options={"tea_minutes": 0})
    assert form.options()["tea_minutes"] == 0
    assert "--tea-minutes 0" in form.magic
    form.choose(other_options={"tea_minutes": 1.5})
    assert form.problems["tea_minutes"].startswith("tea_minutes must be an integer from ")
    form.choose(other_options={"tea_minutes": None})
    assert "tea" not in form.magic


def test_magics_command_line_and_defaults_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    for parser in (make_cell_parser(), make_sweep_parser()):
        assert "Minutes of tea before the start" in parser.format_help()
        assert get_job_options(parser.parse("--tea-minutes 5"), {}) == {"tea_minutes": 5}
    assert update_defaults({}, {"tea_minutes": "5"}) == {"tea_minutes": 5}
    for command in ("submit", "rerun"):
        assert cli.make_parser().parse_args([command, "--tea-minutes", "5", "x"]).tea_minutes == 5
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert "--tea-minutes N" in capsys.readouterr().out


def test_an_option_that_says_so_has_no_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIONS, "tea_minutes", replace(TEA, is_in_form=False))
    shown = asked("%%distributed -p 1 --tea-minutes 5\n1")
    assert "tea_minutes" not in [one["name"] for one in shown["choices"]["options"]]
    assert shown["magic"].endswith("--tea-minutes 5")


def test_what_a_job_holds_is_read_from_the_line_as_it_was_typed() -> None:
    line = "--gpus 2 --memory '24 GB' --priority -3 --after k3f9x --after ab7qd"
    shown = asked(f"%%distributed -p 1 {line}\n1")
    typed = {"gpus": 2, "memory": "24 GB", "priority": -3, "after": "k3f9x,ab7qd"}
    assert shown["values"]["other_options"] == typed
    assert all(word in shown["magic"] for word in ("--gpus 2", "--memory '24 GB'", "--priority -3", "--after ab7qd"))
    wrong = asked("1", values={"other_options": {"memory": "much"}})
    assert wrong["problems"]["memory"].startswith("memory must be a size")
