"""Names the test folders of what changed: ``python -m tests.changed COMMIT`` prints them, one line each.

A file of the package belongs to the tests' folder of the same name, the front end to the tests that open pages or run
its code, a file of ``tests`` to its own folder. A file that belongs to no folder belongs to all tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Folders of the repository whose tests have another name, and files that no test reads.
ELSEWHERE = {
    "labextension": ("tests/browser", "tests/labextension", "tests/widgets"),
    "notebooks": ("tests/notebooks",),
    "docs": ("tests/docs",),
    ".ci": ("tests/commands",),
}
DOCUMENTS = (".md", ".png")


def folders(changed: Iterable[str]) -> list[str]:
    """Return the folders of the tests that belong to these files, relative to the repository."""
    found: set[str] = set()
    for name in changed:
        first, _, rest = name.partition("/")
        if name.endswith(DOCUMENTS):
            continue
        if first in ELSEWHERE:
            found.update(ELSEWHERE[first])
            continue
        below = rest.partition("/")[0]
        if first not in ("tests", "distdl_jupyter") or not (ROOT / "tests" / below).is_dir():
            return ["tests"]
        found.add(f"tests/{below}")
    return sorted(found)


def main(commit: str) -> None:
    listed = subprocess.run(
        ["git", "diff", "--name-only", commit], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    print("\n".join(folders(listed.stdout.splitlines())))


if __name__ == "__main__":
    main(sys.argv[1])
