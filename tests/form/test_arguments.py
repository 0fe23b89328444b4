"""The flags of %%distributed, without a kernel."""

import re

import pytest

from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.options import ALIASES, OPTIONS
from distdl_jupyter.form.arguments import get_job_options, make_cell_parser, mask_secrets, parse_value
from distdl_jupyter.magic.commands import update_defaults


def options(line, defaults=None):
    return get_job_options(make_cell_parser().parse(line), defaults or {})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("-N 2 -p 4", {"node_count": 2, "process_count_per_node": 4}),
        ("--node-count 2 --process-count-per-node auto", {"node_count": 2, "process_count_per_node": "auto"}),
        ("-b horovod-mpi", {"distributed_backend": "horovod-mpi"}),
        ("--name 'my job' --compute-target local", {"name": "my job", "compute_target": "local"}),
        ("--use-gpu", {"use_gpu": True}),
        ("--no-use-gpu", {"use_gpu": False}),
        ("--env A=1 --env B=x=y", {"environment_variables": {"A": "1", "B": "x=y"}}),
        ("--max-run-duration-seconds 90", {"max_run_duration_seconds": 90.0}),
        ("--max-restarts 2 --hang-timeout-seconds 300", {"max_restarts": 2, "hang_timeout_seconds": 300.0}),
        ("--hang-timeout 300 --min-node-count 1", {"hang_timeout_seconds": 300, "min_node_count": 1}),
        ("--controller mpi --transport gloo", {"controller": "mpi", "transport": "gloo"}),
        ("--fusion-threshold-mb 64", {"fusion_threshold_mb": 64}),
        ("-o job --wait --no-panel", {}),
        ("--num-nodes 2 --nproc-per-node 3", {"node_count": 2, "process_count_per_node": 3}),
        ("-N 2 --np 8", {"node_count": 2, "process_count_per_node": 4}),
        ("--backend mpi --timeout 5", {"distributed_backend": "mpi", "max_run_duration_seconds": 5}),
    ],
)
def test_flags_mean_options(line, expected):
    assert options(line) == expected


@pytest.mark.parametrize("line", ["-e A=1", "-n 2", "--max-restart", "--max-duration 3"])
def test_at_most_five_flags_answer_an_unknown_one(line):
    with pytest.raises(InvalidSpec) as caught:
        options(line)
    assert 1 <= len(re.findall(r" --[a-z]", caught.value.message)) <= 5


def test_every_common_option_and_every_alias_is_a_flag():
    parser = make_cell_parser()
    parser.add_deferred_flags()
    assert set(OPTIONS) <= {action.dest for action in parser._actions}
    flags = {flag for action in parser._actions for flag in action.option_strings}
    for alias in ALIASES:
        assert f"--{alias.replace('_', '-')}" in flags or alias == "useGpu", alias


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--proces-count-per-node 2", "Did you mean --process-count-per-node\\? "),
        ("--foo", "Unknown option '--foo'"),
        ("-e A=1", "Did you mean --env, "),
        ("--xyzzy", "Unknown option '--xyzzy'. List all options with %%distributed\\?"),
        ("--proceses 2", "Did you mean --process-count-per-node\\? "),
        ("--bakend torch", "Did you mean --distributed-backend\\? "),
        ("--foo=3", "Unknown option '--foo'"),
        ("2", "Unexpected argument '2' on the magic line. Every value must follow an option, such as -p 2"),
        ("-p two", "must be an integer or auto, not 'two'"),
        ("-p", "expected one argument"),
        ("--name 'open", "No closing quotation"),
        ("--env A", "--env must be NAME=VALUE, or the NAME of a"),
        ("--np 3 -N 2", "cannot be divided evenly among 2 nodes"),
        ("--num-nodes 2 -N 3", "set the same option, but their values differ:"),
        ("--help", "Unknown option '--help'"),
    ],
)
def test_mistakes_are_answered_with_one_sentence(line, words):
    with pytest.raises(InvalidSpec, match=words):
        options(line)


def test_flags_go_before_defaults():
    defaults = {"process_count_per_node": 8, "name": "x", "environment_variables": {"A": "0", "Z": "9"}}
    assert options("-p 2 --env A=1", defaults) == {
        "process_count_per_node": 2,
        "name": "x",
        "environment_variables": {"A": "1", "Z": "9"},
    }
    assert options("--np 4", defaults)["process_count_per_node"] == 4
    assert options("--nproc-per-node 3", defaults)["process_count_per_node"] == 3
    assert options("", defaults) == defaults


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("-p 2 --env MY_TOKEN=abc --env A=1", "-p 2 --env 'MY_TOKEN=•••' --env A=1"),
        ("--env=API_KEY=abc", "'--env=API_KEY=•••'"),
        ("--env DATABASE=postgres://ada:abc123@db/train", "--env 'DATABASE=•••'"),
        ("--name 'a b'", "--name 'a b'"),
    ],
)
def test_secrets_are_masked_in_the_command_that_is_kept(line, shown):
    assert mask_secrets(line) == shown
    assert "abc" not in mask_secrets(line)


def test_help_names_every_flag_with_its_meaning():
    parser = make_cell_parser("distdl")
    text = parser.format_help()
    assert text.startswith("usage: %%distdl [flags]\n")
    for words in (
        "-p N, --process-count-per-node N",
        "horovod-gloo, horovod-mpi",
        "--controller gloo|mpi",
        "%%distributed -p 2",
    ):
        assert words in text
    for action in parser._actions:
        assert action.help


def test_a_line_without_a_plugins_flag_loads_no_plugin(monkeypatch):
    def loading(*_):
        raise AssertionError("A plug-in was loaded.")

    monkeypatch.setattr(registry, "get", loading)
    chosen = make_cell_parser().parse("-p 2 -b torch --name digits --env A=1 -o job")
    assert get_job_options(chosen, {})["name"] == "digits"


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("2.5", 2.5), ("True", True), ("None", None), ("auto", "auto"), ("[1]", "[1]")]
)
def test_words_become_values(text, value):
    assert parse_value(text) == value


def test_defaults_are_removed_and_checked():
    assert update_defaults({"node_count": 2, "name": "x"}, {"nnodes": ""}) == {"name": "x"}
    for changes, words in (
        ({"foo": "1"}, "Unknown option 'foo'"),
        ({"node_count": "0"}, "node_count must be an integer from 1 to 100,000, not 0"),
        ({"backend": "mpx"}, "Unknown distributed backend"),
        ({"target": "moon"}, "Unknown cluster 'moon'"),
    ):
        with pytest.raises(InvalidSpec, match=words):
            update_defaults({}, changes)
