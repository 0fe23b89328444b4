"""The contract of a backend: it answers, it starts and opens nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import registry
from distdl_jupyter.core.plan import Placement, RankPorts, RankSlot, with_ports
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import new_id
from distdl_jupyter.testing.sentences import is_sentence

if TYPE_CHECKING:
    from distdl_jupyter.backends.base import Backend


def _rank_ports(place: RankSlot, ports: int) -> RankPorts:
    first = 21_001 + ports * place.rank
    return f"127.0.0.{1 + place.node}", tuple(range(first, first + ports))


class BackendContract:
    """Subclass it, set ``label``."""

    #: The backend's label, as users write it.
    label = ""
    #: How many ranks the plan is made for: 4 stand on two nodes, any other number on one.
    ranks = 4

    def make(self) -> tuple[Backend, JobSpec, Placement, Any]:
        """Return the backend with all that it is asked about."""
        backend, options = registry.backend(self.label, {})
        places = tuple(RankSlot(r, r // 2, f"node-{r // 2}", r % 2) for r in range(self.ranks))
        nodes = 2 if self.ranks == 4 else 1
        placement = Placement(places, "127.0.0.1", tuple(range(20_001, 20_001 + backend.ports)), "lo")
        placement = with_ports(placement, backend.rank_ports, _rank_ports)
        spec = JobSpec(id=new_id(), name="n", node_count=nodes, process_count_per_node=self.ranks // nodes,
                       distributed_backend=self.label)  # fmt: skip
        return backend, spec, placement, options

    def test_every_rank_gets_an_environment_of_strings(self) -> None:
        """An environment holds nothing else, and every framework looks for these two names."""
        backend, spec, placement, options = self.make()
        plan = backend.plan(spec, placement, options)
        assert len(plan.environments) == self.ranks
        for place, environment in zip(placement.ranks, plan.environments, strict=True):
            assert environment["RANK"] == str(place.rank)
            assert environment["WORLD_SIZE"] == str(self.ranks)
            assert all(isinstance(word, str) for pair in environment.items() for word in pair)

    def test_the_same_question_has_the_same_answer(self) -> None:
        """A plan can be shown before the start because nothing is drawn by chance."""
        backend, spec, placement, options = self.make()
        assert backend.plan(spec, placement, options) == backend.plan(spec, placement, options)

    def test_it_says_in_one_sentence_whether_it_can_be_used(self) -> None:
        """The sentence stands in forms, tables and errors as it is."""
        backend, _, _, options = self.make()
        answer = backend.unavailable(options)
        assert answer == "" or is_sentence(answer)

    def test_it_names_what_every_node_needs(self) -> None:
        """Other machines are looked at for these before a job goes there."""
        backend, _, _, options = self.make()
        for names in (backend.modules(options), backend.programs(options)):
            assert isinstance(names, tuple)
            assert all(names)

    def test_its_options_explain_themselves(self) -> None:
        """Forms, flags and help are made from them."""
        backend, *_ = self.make()
        for field in registry.options("backends", backend.name):
            assert field.metadata.get("help"), field.name
