"""Options under the names that other launchers use, and errors with a fix for contradictions."""

import pytest

from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.options import ALIASES, resolve

ALLOWED = {
    "node_count", "process_count_per_node", "distributed_backend", "compute_target", "vm_size", "use_gpu", "name",
    "environment_variables", "max_run_duration_seconds", "hang_timeout_seconds", "idle_timeout_seconds", "max_restarts",
    "min_node_count", "pip_packages", "requirements",
}  # fmt: skip


@pytest.mark.parametrize(("alias", "primary"), sorted(ALIASES.items()))
def test_every_alias_reaches_its_primary_name(alias, primary):
    assert resolve({alias: 3}, ALLOWED) == {primary: 3}


@pytest.mark.parametrize("word", ["np", "num_proc", "num_processes", "num_workers"])
def test_a_total_is_divided_by_the_nodes(word):
    assert resolve({word: 8, "nnodes": 2}, ALLOWED) == {"node_count": 2, "process_count_per_node": 4}


def test_a_total_that_does_not_divide_is_refused():
    with pytest.raises(InvalidSpec, match="7 processes cannot be divided evenly among 2 nodes"):
        resolve({"np": 7, "node_count": 2}, ALLOWED)


def test_np_below_zero_means_this_machine():
    assert resolve({"np": -4}, ALLOWED) == {"compute_target": "local", "process_count_per_node": 4}
    with pytest.raises(InvalidSpec, match="this machine"):
        resolve({"np": -4, "compute_target": "lab"}, ALLOWED)


def test_local_mode_means_local():
    assert resolve({"local_mode": True}, ALLOWED) == {"compute_target": "local"}
    assert resolve({"local_mode": False}, ALLOWED) == {}


def test_two_names_for_one_thing_may_agree_but_not_differ():
    assert resolve({"nnodes": 2, "num_nodes": 2}, ALLOWED) == {"node_count": 2}
    with pytest.raises(InvalidSpec, match="nnodes and num_nodes set the same option, but their values differ"):
        resolve({"nnodes": 2, "num_nodes": 3}, ALLOWED)


def test_a_total_and_a_contradicting_count_are_refused():
    assert resolve({"np": 4, "nproc_per_node": 2, "nnodes": 2}, ALLOWED)["process_count_per_node"] == 2
    with pytest.raises(
        InvalidSpec, match="nproc_per_node and np set the same option, but their values differ: 3 and 4"
    ):
        resolve({"np": 4, "nproc_per_node": 3}, ALLOWED)


@pytest.mark.parametrize(
    ("name", "guess"),
    [("proces_count", "process_count_per_node"), ("nodes", "node_count"), ("instance_cuont", "node_count"),
     ("minnode_count", "min_node_count"), ("proc_count_per_node", "process_count_per_node"),
     ("proces", "process_count_per_node")],
)  # fmt: skip
def test_a_guess_is_accepted_when_it_is_followed(name, guess):
    with pytest.raises(InvalidSpec, match=rf"Did you mean {guess}\b"):
        resolve({name: 2}, ALLOWED)
    assert resolve({guess: 2}, ALLOWED) == {guess: 2}


def test_no_name_is_guessed_that_is_not_allowed():
    with pytest.raises(InvalidSpec) as raised:
        resolve({"min_process_coumt": 2}, {"node_count"})
    assert "Did you mean" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "label"),
    [("mpi", "horovod-mpi"), ("horovod", "horovod-gloo"), ("gloo", "torch-gloo"), ("nccl", "torch-nccl"),
     ("torch", "torch"), ("plain", "plain")],
)  # fmt: skip
def test_backend_words(given, label):
    assert registry.resolve_label(given) == label
