"""A cell's text is taken apart and put together; the line that does the same is complete, quoted, without a secret."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.form.line import format_cell, format_line, split_cell

OPTIONS: dict[str, Any] = {
    "node_count": 2, "process_count_per_node": 4, "distributed_backend": "horovod-mpi", "compute_target": "local",
    "name": "digits",
}  # fmt: skip


def test_everything_that_was_chosen_stands_in_it() -> None:
    more = {
        "compute_target": "gpu-a100", "vm_size": "NC96ads_A100_v4", "use_gpu": False,
        "max_run_duration_seconds": 5400.0,
        "environment_variables": {"OMP_NUM_THREADS": "2", "NOTE": "two words"},
        "plugin_options": {"cycle_time_ms": 2.5},
    }  # fmt: skip
    assert format_line({**OPTIONS, **more}) == (
        "%%distributed -N 2 -p 4 -b horovod-mpi --compute-target gpu-a100 --vm-size NC96ads_A100_v4 --name digits "
        "--no-use-gpu --max-run-duration-seconds 5400 --env OMP_NUM_THREADS=2 --env 'NOTE=two words' "
        "--cycle-time-ms 2.5 -o job"
    )


def test_packages_stand_in_it_and_the_text_of_a_file_does_not() -> None:
    more = {"pip_packages": ("six", "rich>=13"), "conda_packages": ("ffmpeg=7",), "requirements": "lock.toml"}
    assert format_line({**OPTIONS, **more}).endswith(
        "--pip six --pip 'rich>=13' --conda ffmpeg=7 --requirements lock.toml -o job"
    )
    assert "--requirements" not in format_line({**OPTIONS, "requirements": "six\n"})


ONE_LINE = st.characters(exclude_categories=["C", "Zl", "Zp"])


def test_a_value_of_several_lines_is_left_out() -> None:
    text = format_line({**OPTIONS, "environment_variables": {"A": "one\ntwo", "B": "1"}})
    assert len(text.splitlines()) == 1
    assert "--env B=1" in text


@given(name=st.text(ONE_LINE, min_size=1), value=st.text(ONE_LINE))
def test_any_name_and_value_survive_the_quoting(name: str, value: str) -> None:
    words = shlex.split(format_line({**OPTIONS, "name": name, "environment_variables": {"A": value}})[2:])
    assert name in words
    assert f"A={value}" in words


def test_the_cell_calls_the_function_as_the_form_does() -> None:
    assert format_cell(format_line(OPTIONS), "train", (), {}).splitlines() == [format_line(OPTIONS), "train()"]
    text = format_cell(format_line(OPTIONS), "train", (3, "x"), {"lr": 0.1, "data": list(range(1000))})
    assert text.splitlines()[1] == "train(3, 'x', lr=0.1, data=data)"
    varied = format_cell("%%sweep lr=1,2 width=3,4", "train", (), {"lr": 0.1, "depth": 2}, ("lr", "width"))
    assert varied.splitlines()[1] == "train(lr=lr, depth=2, width=width)"


@pytest.mark.parametrize(
    ("text", "magic", "line", "body", "first_line"),
    [
        ("%%distributed -p 2\nx", "%%distributed", "-p 2", "x", 2),
        ("\n\n%%distdl\nx\ny", "%%distdl", "", "x\ny", 4),
        ("%%distributed", "%%distributed", "", "", 2),
        ("%%time\nx", "%%time", "", "x", 2),
        ("x = 1\n%%distributed -p 2", "", "", "x = 1\n%%distributed -p 2", 1),
        ("\n\nx", "", "", "\n\nx", 1),
        ("%matplotlib inline\nx", "", "", "%matplotlib inline\nx", 1),
        ("", "", "", "", 1),
    ],
)
def test_the_parts_of_a_cell(text: str, magic: str, line: str, body: str, first_line: int) -> None:
    found = split_cell(text)
    assert (found.magic, found.line, found.body, found.first_line) == (magic, line, body, first_line)
    assert found.is_job == magic.startswith("%%dist")


@given(st.text())
def test_the_code_below_a_new_line_is_the_same(body: str) -> None:
    text = f"%%distributed -p 2\n{body}"
    assert split_cell(text).body == body
    assert split_cell(text).line == "-p 2"
