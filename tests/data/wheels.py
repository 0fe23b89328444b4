"""Wheels of one module each, and settings with which an installer finds these and nothing else."""

import zipfile
from pathlib import Path

from distdl_jupyter import submit
from tests.clusters.functions import uses_a_package


def wheel(folder, name, version="1.0", requires=()):
    """Write a wheel whose module has ``VERSION``; ``requires`` are requirements."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    stated = "".join(f"Requires-Dist: {one}\n" for one in requires)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{stated}")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return folder


def only(folder):
    """Return environment variables for pip and uv."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "UV_OFFLINE": "1", "UV_FIND_LINKS": str(folder)}


def assert_nodes_install(folder, backend):
    """Run a job on two nodes of the cluster ``lab`` with a package that none of them has."""
    given = {"pip_packages": ["oneleaf"], "environment_variables": only(wheel(folder, "oneleaf"))}
    job = submit(uses_a_package, compute_target="lab", node_count=2, process_count_per_node=1,
                 distributed_backend=backend, **given)  # fmt: skip
    assert job.results() == ["1.0", "1.0"]
    assert [bar.source for bar in job.view().staging] == ["Python packages", "Python packages"]
