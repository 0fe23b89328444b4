"""Options of every job are declared once, and who lists them reads that."""

import dataclasses

import pytest

from distdl_jupyter import cli
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.options import OPTIONS, check_options, list_flags
from distdl_jupyter.core.spec import JobSpec


def test_a_spec_holds_every_option():
    assert set(OPTIONS) <= {field.name for field in dataclasses.fields(JobSpec)}


@pytest.mark.parametrize("command", ["submit", "resume"])
def test_the_command_line_takes_every_option(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    told = capsys.readouterr().out
    assert [flag for name in OPTIONS for flag in list_flags(name) if flag not in told] == []


def test_what_is_as_by_default_is_left_out():
    assert check_options({"max_restarts": None, "name": "", "outputs": "", "vm_size": "", "use_gpu": None}) == {}
    assert check_options({"max_restarts": 0, "use_gpu": False, "transport": "gloo"}) == {
        "max_restarts": 0,
        "use_gpu": False,
    }


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"node_count": 0}, "node_count must be an integer from 1 to 100,000, not 0."),
        ({"node_count": "auto"}, "node_count must be an integer from 1 to 100,000, not 'auto'."),
        (
            {"process_count_per_node": 200_000},
            "process_count_per_node must be an integer from 1 to 100,000, not 200000.",
        ),
        ({"max_restarts": 1001}, "max_restarts must be an integer from 0 to 1,000, not 1001."),
        ({"stop_grace_seconds": 0}, "stop_grace_seconds must be a number above 0, not 0."),
        ({"use_gpu": "yes"}, "use_gpu must be True, False or None (automatic), not 'yes'."),
        (
            {"environment_variables": {"A=B": "1"}},
            "The environment variable 'A=B' has an invalid name, or a value with a null character.",
        ),
        ({"name": "a\nb"}, "The name of a job must have 1 to 120 printable characters."),
    ],
)
def test_a_value_that_an_option_does_not_take_is_named_with_what_it_takes(given, sentence):
    with pytest.raises(InvalidSpec) as refused:
        check_options(given)
    assert refused.value.message == sentence
    assert refused.value.field == next(iter(given))
