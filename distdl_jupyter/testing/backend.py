"""Contract tests for backends. They check plans and descriptions, and start no process."""

from __future__ import annotations

from typing import Any

from distdl_jupyter.backends.base import Backend
from distdl_jupyter.core import registry
from distdl_jupyter.core.plan import Placement, RankPorts, RankSlot, assign_ports
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import create_id
from distdl_jupyter.testing.sample import is_sentence


class BackendContract:
    """Base class for the tests of a backend. Subclasses set ``label``."""

    #: The backend's label, as users write it.
    label = ""
    #: Number of ranks in the plan. 4 ranks are on two nodes, any other number is on one node.
    ranks = 4

    def make(self) -> tuple[Backend, JobSpec, Placement, Any]:
        """Return the backend and the arguments of its methods: spec, placement, options."""
        backend, options = registry.load_backend(self.label, {})
        slots = tuple(RankSlot(r, r // 2, f"node-{r // 2}", r % 2) for r in range(self.ranks))
        nodes = 2 if self.ranks == 4 else 1
        placement = Placement(slots, "127.0.0.1", tuple(range(20_001, 20_001 + backend.ports)), "lo")

        def make_rank_ports(slot: RankSlot, ports: int) -> RankPorts:
            first = 21_001 + ports * slot.rank
            return f"127.0.0.{1 + slot.node}", tuple(range(first, first + ports))

        placement = assign_ports(placement, backend.rank_ports, make_rank_ports)
        layout: dict[str, Any] = {"node_count": nodes, "process_count_per_node": self.ranks // nodes}
        spec = JobSpec(id=create_id(), name="n", distributed_backend=self.label, **layout)
        return backend, spec, placement, options

    def test_every_rank_gets_an_environment_of_strings(self) -> None:
        """Environments contain only strings, and every framework reads RANK and WORLD_SIZE. Plans are reproducible."""
        backend, spec, placement, options = self.make()
        plan = backend.plan(spec, placement, options)
        assert len(plan.environments) == self.ranks
        for slot, environment in zip(placement.ranks, plan.environments, strict=True):
            assert environment["RANK"] == str(slot.rank)
            assert environment["WORLD_SIZE"] == str(self.ranks)
            assert all(isinstance(text, str) for pair in environment.items() for text in pair)
        assert backend.plan(spec, placement, options) == plan

    def test_it_says_in_one_sentence_whether_it_can_be_used(self) -> None:
        """Forms, tables and errors show the sentence unchanged."""
        backend, _, _, options = self.make()
        problem = backend.unavailable(options)
        assert problem == "" or is_sentence(problem)

    def test_it_names_what_every_node_needs(self) -> None:
        """Other machines are checked for these modules and programs before a job is sent to them."""
        backend, _, _, options = self.make()
        for names in (backend.modules(options), backend.programs(options)):
            assert isinstance(names, tuple)
            assert all(names)

    def test_its_options_explain_themselves(self) -> None:
        """Forms, command-line flags and help texts are generated from the options."""
        backend, *_ = self.make()
        for field in registry.get_options("backends", backend.name):
            assert field.metadata.get("help"), field.name
