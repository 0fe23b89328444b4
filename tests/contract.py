"""What every backend and every cluster must hold, ours and other people's: subclass, name the plug-in, run.

class TestMyCluster(ClusterContract):
    name = "mine"
"""

import json
import os
import select
import sys
import time

from distdl_jupyter import registry
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core.plan import Placement, Plan, RankPlace
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore, new_id


class BackendContract:
    """A backend is pure: it answers, it starts and opens nothing."""

    label = ""
    ranks = 4

    def make(self):
        backend, options = registry.backend(self.label, {})
        places = tuple(RankPlace(r, r // 2, f"node-{r // 2}", r % 2) for r in range(self.ranks))
        nodes = 2 if self.ranks == 4 else 1
        placement = Placement(places, "127.0.0.1", tuple(range(20_001, 20_001 + backend.ports)), "lo")
        spec = JobSpec(id=new_id(), name="n", node_count=nodes, process_count_per_node=self.ranks // nodes,
                       distributed_backend=self.label)  # fmt: skip
        return backend, spec, placement, options

    def test_every_rank_gets_an_environment_of_strings(self):
        backend, spec, placement, options = self.make()
        plan = backend.plan(spec, placement, options)
        assert len(plan.environments) == self.ranks
        for place, environment in zip(placement.ranks, plan.environments, strict=True):
            assert environment["RANK"] == str(place.rank)
            assert environment["WORLD_SIZE"] == str(self.ranks)
            assert all(isinstance(word, str) for pair in environment.items() for word in pair)

    def test_the_same_question_has_the_same_answer(self):
        backend, spec, placement, options = self.make()
        assert backend.plan(spec, placement, options) == backend.plan(spec, placement, options)

    def test_it_says_in_one_sentence_whether_it_can_be_used(self):
        backend, _, _, options = self.make()
        answer = backend.unavailable(options)
        assert answer == "" or answer.endswith(".")

    def test_its_options_explain_themselves(self):
        backend, *_ = self.make()
        for field in registry.options("backends", backend.name):
            assert field.metadata.get("help")


class ClusterContract:
    """A cluster starts a plan, tells every end exactly once, and leaves nothing behind."""

    name = ""
    options = {}  # noqa: RUF012

    def start(self, code, ranks=2):
        cluster = registry.get("clusters", self.name)
        options = registry.check_options("clusters", self.name, self.options)
        folder = JobStore().prepare(new_id())
        folder = JobStore().publish(folder)
        spec = JobSpec(id=folder.id, name="n", process_count_per_node=ranks, python=sys.executable,
                       compute_target=self.name, working_directory=str(folder.path))  # fmt: skip
        folder.spec_file.write_text(spec.dumps())
        payload = {"format": 1, "kind": "script", "script": str(folder.path / "script.py"), "arguments": [], "path": [],
                   "names": [], "sources": {}, "working_directory": str(folder.path)}  # fmt: skip
        (folder.path / "payload.json").write_text(json.dumps(payload))
        (folder.path / "script.py").write_text(code)
        own = {"DISTDL_JOB_ID": folder.id, "DISTDL_JOB_DIR": str(folder.path)}
        context = Context(folder, own, dict(os.environ))
        placement = cluster.place(spec, 1, options, context)
        plan = Plan(tuple({"RANK": str(place.rank)} for place in placement.ranks))
        return cluster, placement, cluster.start(spec, placement, plan, context)

    def finish(self, run, patience=60.0):
        """Return all exits by rank and what each rank printed."""
        exits, said = {}, {}
        until = time.monotonic() + patience
        ranks = {stream.rank for stream in run.streams if stream.rank is not None}
        while set(exits) != ranks:
            assert time.monotonic() < until, f"only {exits} ended"
            self.listen(run, said)
            for exit_ in run.poll():
                assert exit_.rank not in exits, "an end is told once"
                exits[exit_.rank] = exit_
        self.listen(run, said)
        return exits, said

    def listen(self, run, said):
        for stream in run.streams:
            while select.select([stream.fd], [], [], 0.01)[0]:
                try:
                    data = os.read(stream.fd, 65_536)
                except BlockingIOError:
                    break
                if not data:
                    break
                said[stream.rank] = said.get(stream.rank, b"") + data

    def test_a_preview_reserves_nothing_and_places_every_rank(self):
        cluster = registry.get("clusters", self.name)
        options = registry.check_options("clusters", self.name, self.options)
        placement = cluster.preview(JobSpec(id="i", name="n", node_count=2, process_count_per_node=2), options)
        assert placement.ports == ()
        assert [(p.rank, p.node, p.local_rank) for p in placement.ranks] == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]

    def test_ranks_run_and_their_codes_and_output_are_told(self):
        _, placement, run = self.start(
            "import os, sys\nprint('rank', os.environ['RANK'])\nsys.exit(3 * int(os.environ['RANK']))"
        )
        exits, said = self.finish(run)
        assert {rank: exit_.code for rank, exit_ in exits.items()} == {0: 0, 1: 3}
        for rank in (0, 1):
            assert f"rank {rank}".encode() in said[rank]
        assert len(set(placement.ports)) == 1
        assert run.alive() == []
        run.close()

    def test_a_signal_ends_every_process_and_is_named(self):
        _, _, run = self.start("import time, os\nos.fork()\ntime.sleep(600)")
        until = time.monotonic() + 30
        while len(run.alive()) < 4 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(run.alive()) >= 4
        run.signal("KILL")
        exits, _ = self.finish(run)
        assert {exit_.signal for exit_ in exits.values()} == {"KILL"}
        until = time.monotonic() + 10
        while run.alive() and time.monotonic() < until:
            time.sleep(0.05)
        assert run.alive() == []
        run.close()

    def test_what_a_dead_supervisor_left_is_swept(self):
        cluster, _, run = self.start("import time\ntime.sleep(600)")
        until = time.monotonic() + 30
        while len(run.alive()) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        found = cluster.sweep(run._context.folder.id, run.handle())
        assert len(found) >= 2
        self.finish(run)
        assert run.alive() == []
        run.close()
