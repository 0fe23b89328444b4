"""Which tests touch a file, the nearest first: of its own name, of its own folder, of the folders in the table."""

from __future__ import annotations

from pathlib import Path

from tests.scheduling import recorded, scope

#: Whose tests run the code of a folder, besides the folder's own.
FURTHER = {
    "distdl_jupyter/core": "presentation form capture supervisor panels monitoring labextension compat preflight cli"
    " server client magic worker ranks storage faults backends clusters notebooks warm security multihost browser",
    "distdl_jupyter/supervisor": "core monitoring client faults ranks backends warm clusters storage security magic",
    "distdl_jupyter/form": "panels server magic cli browser",
    "distdl_jupyter/presentation": "panels form server cli magic labextension ranks client browser",
    "distdl_jupyter/server": "form labextension security faults notebooks browser",
    "distdl_jupyter/clusters/ssh": "multihost storage security server form cli faults",
    "distdl_jupyter/clusters/slurm": "storage multihost server form faults security",
    "distdl_jupyter/clusters/azureml": "azure server form cli storage faults browser",
    "distdl_jupyter/clusters": "client backends supervisor environment ranks faults warm preflight server security",
    "labextension/src": "panels browser",
}


def stages(root: Path, file: str, *, near: bool = False) -> list[list[str]]:
    """Return the files of tests for a file as lists to be run one after the other, the shortest files first."""
    top = next(folder for folder in FURTHER if file.startswith(f"{folder}/"))
    own = Path(top).relative_to("distdl_jupyter") if top.startswith("distdl_jupyter") else "labextension"
    stem = Path(file).stem
    tests = _tests(root, root / "tests" / own)
    named = [test for test in tests if Path(test).stem.startswith(f"test_{stem}")]
    found = [named, [test for test in tests if test not in named]]
    if not near:
        found += [_tests(root, root / "tests" / name) for name in FURTHER[top].split()]
    return [tests for tests in found if tests]


def _tests(root: Path, folder: Path) -> list[str]:
    seconds = recorded()
    pattern = "test_*.py" if folder == root / "tests/clusters" else "**/test_*.py"
    names = sorted(str(path.relative_to(root)) for path in folder.glob(pattern))
    return sorted(names, key=lambda name: seconds.get(scope(name), 0.0))
