"""What a cluster says of itself without starting anything."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING

import pytest

from distdl_jupyter.core.errors import ClusterRefused, DistDLError
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.testing.sentences import is_sentence
from distdl_jupyter.testing.subject import Subject

if TYPE_CHECKING:
    from distdl_jupyter.clusters.base import Check
    from distdl_jupyter.core.plan import Placement

#: Within 30 s whatever happens, and as long again for a machine that is busy with other tests.
_CHECK_SECONDS = 60.0
_NOWHERE = "distdl_a_module_that_is_nowhere"


class DescriptionContract(Subject):
    """Every cluster holds it, one on which no job ever starts too."""

    def asked(self, nodes: int, per_node: int) -> JobSpec:
        """Return a job that is only asked about."""
        return JobSpec(id="asked", name="asked", node_count=nodes, process_count_per_node=per_node,
                       compute_target=self.name, cluster_options=dict(self.options))  # fmt: skip

    def preview(self, nodes: int, per_node: int) -> Placement:
        """Ask where the ranks would run."""
        return self.cluster.preview(self.asked(nodes, per_node), self.checked)

    def test_it_is_called_as_its_entry_point_and_has_a_title(self) -> None:
        """Specs name a cluster by it; lists show the title."""
        assert self.cluster.name == self.name
        assert self.cluster.title

    def test_its_options_explain_themselves_and_can_be_left_out(self) -> None:
        """Forms, flags and help are made from them, and named clusters are kept as JSON."""
        for field in dataclasses.fields(self.cluster.Options):
            assert field.metadata.get("help"), field.name
        self.cluster.Options()
        assert json.loads(json.dumps(dict(self.options))) == dict(self.options)

    def test_it_says_in_one_sentence_whether_it_can_be_used(self) -> None:
        """The sentence stands in forms, tables and errors as it is."""
        answer = self.cluster.unavailable(self.checked)
        assert answer == "" or is_sentence(answer)

    def test_it_says_how_many_processes_fit_on_a_node(self) -> None:
        """``process_count_per_node="auto"`` is this number."""
        for use_gpu in (None, False):
            assert self.cluster.process_count_per_node(self.checked, use_gpu=use_gpu) >= 1

    def test_it_describes_its_machines_in_one_line(self) -> None:
        """The line stands beside the cluster's name."""
        assert "\n" not in self.cluster.detail(self.checked)

    def test_a_preview_places_every_rank_and_reserves_nothing(self) -> None:
        """Forms ask for it at every keystroke; ranks of one node follow one another."""
        placement = self.preview(self.preview_nodes, 2)
        assert placement.ports == ()
        wanted = [(2 * node + local, node, local) for node in range(self.preview_nodes) for local in range(2)]
        assert [(place.rank, place.node, place.local_rank) for place in placement.ranks] == wanted
        assert placement == self.preview(self.preview_nodes, 2)

    def test_ten_thousand_nodes_are_previewed_or_refused_with_a_sentence(self) -> None:
        """What cannot be had is said before anything is started."""
        try:
            placement = self.preview(10_000, 1)
        except DistDLError as error:
            assert is_sentence(error.message)  # noqa: PT017 - a refusal is as good as a placement
        else:
            assert len(placement.ranks) == 10_000

    def test_its_nodes_are_named_once_and_say_why_they_are_down(self) -> None:
        """The sidebar shows them; one that is silent costs the others nothing."""
        nodes = self.cluster.nodes(self.checked)
        assert len({node.name for node in nodes}) == len(nodes)
        for node in nodes:
            assert node.name
            assert node.detail or node.state != "down", f"{node.name} is down, but its detail is empty"
        assert self.cluster.max_node_count(self.checked, len(nodes)) >= len(nodes)

    def test_the_node_of_a_rank_is_found_by_the_host_that_it_was_placed_on(self) -> None:
        """So the sidebar knows which machines are busy."""
        nodes = self.cluster.nodes(self.checked)
        for host in {place.host for place in self.preview(1, 2).ranks} & {node.name for node in nodes}:
            assert any(self.cluster.holds(node, host) for node in nodes)

    def test_a_fixed_number_of_nodes_is_refused_to_change(self) -> None:
        """Otherwise the answer is the options from now on."""
        if self.cluster.can_scale:
            assert isinstance(self.cluster.scale(self.checked, 1), self.cluster.Options)
        else:
            with pytest.raises(ClusterRefused):
                self.cluster.scale(self.checked, 1)

    def test_machines_that_are_made_from_here_are_declared_and_told(self) -> None:
        """Forms and flags come from the declaration, and what costs money is never hidden."""
        if not self.cluster.can_create:
            assert self.cluster.machines(self.checked) is None
            for change in (self.cluster.delete, lambda options: self.cluster.create(options, None)):
                with pytest.raises(ClusterRefused):
                    change(self.checked)
            return
        for field in dataclasses.fields(self.cluster.Wanted):
            assert field.metadata.get("help"), field.name
        machines = self.cluster.machines(self.checked)
        assert machines is None or 0 <= machines.min_nodes <= machines.max_nodes or not machines.exists
        assert machines is None or machines.cost_per_hour is None or (machines.currency and machines.price_source)

    def test_what_can_be_asked_about_an_option_is_a_list_or_a_sentence(self) -> None:
        """A form offers the values; what has to be chosen before is said."""
        fields = {field.name for kind in (self.cluster.Options, self.cluster.Wanted) for field in _fields(kind)}
        assert set(self.cluster.asks) <= fields
        for name in self.cluster.asks:
            try:
                found = self.cluster.choices(name, dict(self.options))
            except DistDLError as error:
                assert is_sentence(error.message)  # noqa: PT017 - a refusal is as good as a list
            else:
                assert len({one.value for one in found}) == len(found)
                assert all(one.value for one in found)

    def test_its_checks_say_what_was_seen_and_what_to_do(self) -> None:
        """They are shown as a table before a job starts, and a red row alone is no help."""
        rows = self._check(modules=("json",), programs=("sh",))
        assert not [row for row in rows if row.level == "error"]

    def test_a_module_that_a_far_node_lacks_is_an_error_that_says_how_to_install_it(self) -> None:
        """Nodes that are other machines have packages of their own."""
        if not self.cluster.far:
            assert self.cluster.unavailable(self.checked) == ""
            return
        rows = self._check(modules=(_NOWHERE,), programs=())
        red = [row for row in rows if row.level == "error"]
        assert any(_NOWHERE in f"{row.what} {row.says}" for row in red), rows

    def _check(self, modules: tuple[str, ...], programs: tuple[str, ...]) -> list[Check]:
        began = time.monotonic()
        rows = self.cluster.checks(self.checked, modules=modules, programs=programs)
        assert time.monotonic() - began < _CHECK_SECONDS, f"checks must complete within {_CHECK_SECONDS:.0f} s"
        for row in rows:
            assert row.what, row
            assert row.says, row
            assert "\n" not in row.says + row.remedy, row
            assert row.remedy or row.level in ("ok", "info"), f"this check has no remedy: {row}"
        return rows


def _fields(kind: type) -> tuple[dataclasses.Field[object], ...]:
    return dataclasses.fields(kind)
