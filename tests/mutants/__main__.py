"""Run mutants: ``python -m tests.mutants run [--all] [--near] [NAME ...]``; write what came out: ``... table``.

Without names those run that have no result yet. ``--all`` runs those that the quick selection did not kill with all
tests; ``--near`` runs the tests of the mutated folder alone, and keeps the result of those alone that were killed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from tests.mutants import list as kept
from tests.mutants.copy import Copy
from tests.mutants.page import write_page
from tests.mutants.touching import stages


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--near", action="store_true")
    given = parser.parse_args()
    if given.command == "run":
        with Copy() as copy:
            for mutant in _chosen(given.names, everything=given.all):
                _run(copy, mutant, everything=given.all, near=given.near)
    write_page()


def _chosen(names: list[str], *, everything: bool) -> Iterator[kept.Mutant]:
    known, so_far, equal = kept.mutants(), kept.results(), kept.equivalent()
    if names:
        yield from (known[name] for name in names)
        return
    for name, mutant in known.items():
        escaped = name in so_far["quick"] and not so_far["quick"][name].killer
        if (escaped if everything else name not in so_far["quick"]) and name not in {*so_far["all"], *equal}:
            yield mutant


def _run(copy: Copy, mutant: kept.Mutant, *, everything: bool, near: bool) -> None:
    selection, begun = "all" if everything else "quick", time.monotonic()
    last = kept.results()[selection].get(mutant.name)
    killer = ""
    with mutant.inside(copy.root):
        built = not mutant.file.endswith(".ts") or copy.build()
        for tests in stages(copy.root, mutant.file, last.killer if last else "", near=near) if built else ():
            if killer := copy.killer(tests, everything=everything):
                break
    killer = killer if built else "npm run build"
    seconds = round(time.monotonic() - begun)
    print(f"{mutant.name} {seconds:4} s  {killer or 'survived'}", flush=True)
    if killer or not near:
        kept.keep(kept.Result(mutant.name, selection, killer, seconds, copy.commit))


if __name__ == "__main__":
    main()
