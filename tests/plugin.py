"""A package with plug-ins, installed for one test: for this process and for every Python that it starts."""

import os
import textwrap

import pytest

from distdl_jupyter.core import registry

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

        def default_options(self):
            return None

        def detail(self, options):
            return f"{options.machines} machines in a rack"

        def list_nodes(self, options):
            time.sleep(options.silent_seconds)
            up = options.machines - options.down
            return [NodeInfo(f"node-{n}", "up" if n < up else "down", "" if n < up else "no answer", 4, "A100")
                    for n in range(options.machines)]
"""
#: A cluster whose machines are made and unmade; they are lines of a file, and cost 0.5 USD an hour each.
FORGE = """
    import json, os, pathlib
    from dataclasses import dataclass, field
    from distdl_jupyter.clusters.base import Cluster, NodeInfo
    from distdl_jupyter.clusters.local import LocalCluster
    from distdl_jupyter.clusters.base import Machines, OptionValue, Provisioner
    from distdl_jupyter.core.errors import ClusterRefused, InvalidSpec

    @dataclass(frozen=True)
    class ForgeOptions:
        place: str = field(default="", metadata={"help": "where", "first": True})
        yard: str = field(default="", metadata={"help": "a part of the place", "first": True})

    @dataclass(frozen=True)
    class ForgeWanted:
        size: str = field(metadata={"help": "size of each machine"})
        max_nodes: int = field(default=2, metadata={"help": "most machines"})
        min_nodes: int = field(default=0, metadata={"help": "machines that stay up"})
        shiny: bool = field(default=False, metadata={"help": "polish them"})

    def file():
        return pathlib.Path(os.environ["JUPYTER_CONFIG_DIR"]) / "forge.json"

    def kept():
        return json.loads(file().read_text()) if file().exists() else None

    def keep(told):
        file().parent.mkdir(parents=True, exist_ok=True)
        file().write_text(json.dumps(told)) if told else file().unlink()

    class ForgeCluster(LocalCluster, Provisioner):
        name = "forge"
        title = "Forge"
        Options = ForgeOptions
        compute_spec = ForgeWanted
        dynamic_options = ("place", "yard", "size")

        def default_options(self):
            return None

        def list_choices(self, field, options):
            if field == "place":
                south = OptionValue("south", "The south", "hot", {"yard": "quay"})
                return [OptionValue("north", "The north", "cold"), south]
            if field == "size":
                return [OptionValue("small", "", "1 hammer"), OptionValue("large", "", "2 hammers")]
            if not options.get("place"):
                raise InvalidSpec("place is missing.", field="place", hint="Choose a place first.")
            return [OptionValue("of " + options["place"])]

        def get_machines(self, options):
            told = kept()
            return self._of(told, True) if told else Machines(exists=False)

        def _of(self, told, exists):
            return Machines(exists=exists, state=told.get("state", ""), problem=told.get("problem", ""),
                            size=told["size"], detail="forged", min_nodes=told["min"], max_nodes=told["max"],
                            cost_per_hour=None if told["size"] == "large" else 0.5, currency="USD",
                            price_source="the smith")

        def list_nodes(self, options):
            told = kept() or {"up": 0, "size": ""}
            cost = None if told["size"] == "large" else 0.5
            return [NodeInfo(f"anvil-{at}", billed=True, cost_per_hour=cost, currency="USD")
                    for at in range(told["up"])]

        def create(self, options, wanted):
            if kept():
                raise ClusterRefused("The forge is lit already.", hint="Let it go out.")
            if wanted.size == "huge":
                raise InvalidSpec("Nothing huge is forged here.", field="size", hint="Take large.")
            keep({"size": wanted.size, "min": wanted.min_nodes, "max": wanted.max_nodes, "up": wanted.min_nodes})

        def delete(self, options):
            keep(None)
"""
#: One that cannot be imported, and one that fails when it is asked.
BROKEN = """
    from distdl_jupyter.clusters.local import LocalCluster

    class Clumsy(LocalCluster):
        name = "clumsy"

        def list_nodes(self, options):
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
    monkeypatch.setenv("DISTDL_WARM", "off")  # the worker's template looks for modules elsewhere
    registry._scan_entry_points.cache_clear()


def forget():
    """Let the registry look again, after the test's paths are gone."""
    registry._scan_entry_points.cache_clear()


@pytest.fixture
def rack(tmp_path, monkeypatch):
    """The cluster of ``RACK``."""
    install(tmp_path, monkeypatch, RACK, {"clusters": {"rack": "RackCluster"}})
    yield
    forget()
