"""Which tests touch a file, the nearest first: those of its own name, those of its own folder, then those of the table."""

from __future__ import annotations

from pathlib import Path

#: The tests that run the code of a folder, besides the folder's own: the cheap ones first.
FURTHER = {
    "distdl_jupyter/core": (
        "presentation form capture supervisor panels monitoring labextension compat preflight cli server client magic worker "
        "ranks storage faults backends clusters notebooks warm security multihost browser"
    ),
    "distdl_jupyter/supervisor": "core monitoring client faults ranks backends warm clusters storage security multihost magic",
    "distdl_jupyter/form": "panels server magic cli browser",
    "distdl_jupyter/presentation": "panels form server cli magic labextension ranks client browser",
    "distdl_jupyter/server": "form labextension security faults notebooks browser",
    "distdl_jupyter/clusters/ssh": "multihost storage security server form cli faults",
    "distdl_jupyter/clusters/slurm": "storage multihost server form faults security",
    "distdl_jupyter/clusters/azureml": "azure server form cli storage faults browser",
    "distdl_jupyter/clusters": "client backends supervisor environment ranks faults warm preflight server security multihost",
    "labextension/src": "labextension panels browser",
}


def stages(root: Path, file: str, last: str = "", *, near: bool = False) -> list[list[str]]:
    """Return the tests for a file as lists to be run one after the other, the killer of ``last`` time first."""
    top = next(folder for folder in FURTHER if file.startswith(f"{folder}/"))
    inside = Path(file).relative_to("distdl_jupyter" if top.startswith("distdl_jupyter") else "labextension/src")
    folder = root / "tests" / (inside.parent if top.startswith("distdl_jupyter") else "labextension")
    tests = sorted(folder.glob("test_*.py"))
    named = [path for path in tests if path.stem.removeprefix("test_").startswith(inside.stem.split(".")[0])]
    others = [path for path in tests if path not in named]
    found = [[last] if "::" in last else [], named, others]
    if not near:
        found += [[root / "tests" / name] for name in FURTHER[top].split()]
        if top.startswith("distdl_jupyter/clusters/"):
            found += [sorted((root / "tests/clusters").glob("test_*.py"))]
    return [[str(path).removeprefix(f"{root}/") for path in paths] for paths in found if paths]
