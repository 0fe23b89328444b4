"""A package with plug-ins, installed for one test: for this process and for every Python that it starts."""

import os
import textwrap

from distdl_jupyter import registry

#: A cluster that runs on this machine but speaks of machines of its own, some of which are down; it can be scaled.
RACK = """
    import dataclasses, os, time
    from dataclasses import dataclass, field
    from distdl_jupyter.clusters.base import Cluster, NodeInfo
    from distdl_jupyter.clusters.local import LocalCluster
    from distdl_jupyter.core.errors import ClusterRefused

    @dataclass(frozen=True)
    class RackOptions:
        machines: int = field(default=2, metadata={"help": "how many machines"})
        down: int = field(default=0, metadata={"help": "how many of them are down"})
        fast: bool = field(default=False, metadata={"help": "hurry"})
        silent_seconds: float = field(default=0.0, metadata={"help": "seconds before it answers"})

    class RackCluster(LocalCluster):
        name = "rack"
        title = "Rack"
        Options = RackOptions
        complete = False
        can_scale = True

        def detail(self, options):
            return f"{options.machines} machines in a rack"

        def nodes(self, options):
            time.sleep(options.silent_seconds)
            up = options.machines - options.down
            return [NodeInfo(f"node-{n}", "up" if n < up else "down", "" if n < up else "no answer", 4, "A100")
                    for n in range(options.machines)]

        def holds(self, node, host):
            return Cluster.holds(self, node, host)

        def max_node_count(self, options, nodes):
            return 8

        def scale(self, options, node_count):
            if node_count > 8:
                raise ClusterRefused("The rack has room for 8 machines.")
            return dataclasses.replace(options, machines=node_count)
"""
#: One that cannot be imported, and one that fails when it is asked.
BROKEN = """
    from distdl_jupyter.clusters.local import LocalCluster

    class Clumsy(LocalCluster):
        name = "clumsy"

        def nodes(self, options):
            raise ZeroDivisionError("counted the machines")

    import a_module_that_is_nowhere
"""
CLUMSY = BROKEN.replace("import a_module_that_is_nowhere", "")


def install(tmp_path, monkeypatch, code, points):
    """Install ``code`` as a module with the entry points {"clusters": {"rack": "RackCluster"}}."""
    module = f"plugin_{abs(hash(code)) % 10**8}"
    folder = tmp_path / f"site-{module}"
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{module}.py").write_text(textwrap.dedent(code))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"[distdl_jupyter.{kind}]\n{name} = {module}:{cls}\n" for kind, named in points.items()
             for name, cls in named.items()]  # fmt: skip
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    registry._points.cache_clear()


def forget():
    """Let the registry look again, after the test's paths are gone."""
    registry._points.cache_clear()
