"""The public surface of the package changes only on purpose."""

import difflib

from tests.packaging import surface


def test_the_public_surface_is_that_of_the_snapshot():
    snapshot, now = surface.FILE.read_text(encoding="utf-8"), surface.text()
    changes = difflib.unified_diff(snapshot.splitlines(), now.splitlines(), "surface.txt", "the code", lineterm="")
    assert now == snapshot, "\n".join([
        "The public surface has changed.", *changes,
        "If that is intended, add a line to CHANGELOG.md and run: .venv/bin/python -m tests.packaging.surface",
    ])  # fmt: skip
