"""``clusters()`` and ``add_cluster(...)`` as a notebook uses them."""

import subprocess
import sys

import pytest

import distdl_jupyter
from distdl_jupyter import add_cluster, clusters
from distdl_jupyter.core.errors import ClusterNotFound, ClusterRefused, InvalidSpec, PluginUnavailable
from tests import plugin


def test_the_name_can_be_called_whatever_was_imported_first():
    first = "import distdl_jupyter.clusters.base; from distdl_jupyter import clusters"
    for order in (first, "from distdl_jupyter import clusters; import distdl_jupyter.clusters.base"):
        code = f"{order}\nassert [one.name for one in clusters()] == ['local'], clusters()\n"
        code += "from distdl_jupyter.core import machine; assert machine.list_gpu_numbers is not None"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "clusters" in dir(distdl_jupyter)


def test_a_cluster_is_added_shown_changed_and_removed(rack):
    mini = add_cluster("mini", "rack", machines=3, down=1)
    assert (mini.name, mini.kind, mini.options) == ("mini", "rack", {"machines": 3, "down": 1})
    assert mini == clusters()["mini"]
    assert "mini" in clusters()
    assert [one.name for one in clusters()] == ["local", "mini"]
    assert clusters()[-1].name == "mini"
    assert repr(mini).splitlines()[1].split() == ["mini", "rack", "2", "of", "3", "up", "8", "node-2:", "no", "answer"]
    lines = repr(clusters()).splitlines()
    assert lines[0].split() == ["Name", "Kind", "Nodes", "GPUs", "Problem"]
    assert lines[2].split() == ["mini", "rack", "2", "of", "3", "up", "8", "node-2:", "no", "answer"]
    assert "<td" in clusters()._repr_html_()
    nodes = mini.nodes()
    assert [one.state for one in nodes] == ["up", "up", "down"]
    assert "✗ down" in repr(nodes)
    assert "4 × A100" in nodes._repr_html_()
    mini.change(down=None)
    assert mini.options == {"machines": 3}
    mini.remove()
    assert [one.name for one in clusters()] == ["local"]
    with pytest.raises(ClusterNotFound):
        mini.nodes()


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: add_cluster("mini", "rack", machines=True), InvalidSpec, "machines must be an integer, not"),
        (lambda: add_cluster("mini", "rack", fast=1), InvalidSpec, "fast must be true or false, not 1"),
        (lambda: clusters()["mino"], ClusterNotFound, r"Unknown cluster 'mino'\..* Use one of: local"),
        (lambda: clusters()["rack"], ClusterNotFound, r"rack is a type of cluster.*add_cluster\(\"lab\", \"rack\""),
        (lambda: clusters()["local"].remove(), ClusterRefused, "is built in"),  # noqa: PLW0108
        (lambda: clusters()["local"].change(x=1), InvalidSpec, "is built in"),
        (lambda: clusters()["local"].check("horovod-glo"), InvalidSpec, "Did you mean horovod-gloo"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence_and_the_remedy(rack, make, error, says):
    with pytest.raises(error, match=says):
        make()


NEEDY = """
    import ray_of_nowhere
    class Needy: pass
"""


def test_a_missing_dependency_is_answered_with_the_command_that_installs_it(tmp_path, monkeypatch):
    plugin.install(tmp_path, monkeypatch, NEEDY, {"clusters": {"needy": "Needy"}})
    (info,) = tmp_path.glob("site-*/*.dist-info")
    metadata = info / "METADATA"
    extra = 'Provides-Extra: needy\nRequires-Dist: ray-of-nowhere>=2; extra == "needy"\n'
    metadata.write_text(metadata.read_text() + extra)
    plugin.forget()
    try:
        with pytest.raises(PluginUnavailable) as refused:
            add_cluster("mini", "needy")
        package = info.name.partition("-")[0]
        assert refused.value.hint == f"Install it: pip install '{package}[needy]'"
        assert f"pip install '{package}[needy]'" in repr(clusters())
    finally:
        plugin.forget()
