"""Which tests touch a file, the nearest first: those of its own folder, then of the folders in the table."""

from __future__ import annotations

from pathlib import Path

from tests.scheduling import recorded, scope

#: Whose tests run the code of a folder, besides the folder's own.
FURTHER = {
    "distdl_jupyter/core": "views form capture supervisor widgets monitoring labextension compat preflight cli"
    " server client magic worker ranks storage faults backends clusters notebooks warm security multihost browser",
    "distdl_jupyter/supervisor": "core monitoring client faults ranks backends warm clusters storage security magic",
    "distdl_jupyter/form": "widgets cluster_handles server magic cli browser",
    "distdl_jupyter/views": "widgets form cluster_handles azure server cli magic labextension ranks client browser",
    "distdl_jupyter/live": "server browser",
    "distdl_jupyter/server": "form cluster_handles labextension security faults notebooks browser",
    "distdl_jupyter/clusters/agents": "clusters/ssh clusters/slurm clusters/ray clusters/spark multihost storage"
    " security faults",
    "distdl_jupyter/clusters/ssh": "clusters/agents multihost storage security server form cli faults",
    "distdl_jupyter/clusters/slurm": "storage multihost server form faults security",
    "distdl_jupyter/clusters/azureml": "azure cluster_handles server form cli storage faults browser",
    "distdl_jupyter/stager": "node/staging storage clusters",
    "distdl_jupyter/node": "clusters clusters/agents client supervisor warm faults clusters/ssh",
    "distdl_jupyter/clusters": "client backends supervisor environment ranks faults warm preflight server security"
    " clusters/agents clusters/ssh clusters/slurm clusters/azureml multihost",
    "labextension/src": "widgets server/test_live_client.py browser",
}


def stages(root: Path, file: str, *, near: bool = False) -> list[list[str]]:
    """Return the files of tests for a file as lists to be run one after the other."""
    top = next(folder for folder in FURTHER if file.startswith(f"{folder}/"))
    own = Path(top).relative_to("distdl_jupyter") if top.startswith("distdl_jupyter") else Path("labextension")
    words = Path(file).relative_to(top).with_suffix("").parts
    folders = [str(own), *([] if near else FURTHER[top].split())]
    found = [_tests(root / "tests" / folder, words) for folder in folders]
    named, others = found[0]
    return [
        [str(test.relative_to(root)) for test in tests]
        for tests in (named, others, *(a + b for a, b in found[1:]))
        if tests
    ]


def _tests(folder: Path, words: tuple[str, ...]) -> tuple[list[Path], list[Path]]:
    """Return the files of tests in a folder that have the name of what is tested, and the others; short ones first."""
    pattern = "test_*.py" if folder.name == "clusters" else "**/test_*.py"
    tests = [folder] if folder.is_file() else sorted(folder.glob(pattern))
    seconds = recorded()
    tests.sort(key=lambda test: seconds.get(scope(str(test)[str(test).rindex("tests/") :]), 0.0))
    names = {test: test.stem.removeprefix("test_") for test in tests}
    named = [
        test for test in tests if any(word.startswith(names[test]) or names[test].startswith(word) for word in words)
    ]
    return named, [test for test in tests if test not in named]
