"""The recipes of CONTRIBUTING.md, done as they are written."""

import pytest

from distdl_jupyter import submit
from tests import plugin
from tests.docs.blocks import ROOT, blocks


@pytest.fixture
def recipes(tmp_path, monkeypatch, distdl_home):
    code = {block.text.rpartition("\nclass ")[2].partition("(")[0]: block.text
            for block in blocks(ROOT / "CONTRIBUTING.md") if block.kind == "python"}  # fmt: skip
    plugin.install(tmp_path, monkeypatch, code["RackCluster"], {"clusters": {"rack": "RackCluster"}})
    plugin.install(tmp_path, monkeypatch, code["StarBackend"], {"backends": {"star": "StarBackend"}})
    yield
    plugin.forget()


@pytest.mark.usefixtures("recipes")
def test_a_launcher_and_a_backend_of_one_class_run_a_job():
    from distdl_jupyter import clusters

    assert [node.name for node in clusters()["rack"].nodes()] == ["node-0", "node-1"]

    def told():
        import os

        return int(os.environ["STAR_RANK"])

    job = submit(told, compute_target="rack", distributed_backend="star", process_count_per_node=2)
    assert job.results() == [0, 1]
