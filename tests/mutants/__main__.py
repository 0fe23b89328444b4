"""Put mutants into a copy of the code and see whether tests fail: ``python -m tests.mutants quick [NAME ...]``.

near: only the tests of the mutated folder, to find early which mutants survive these;
quick: the tests that ``make test`` would run, of those that touch the file, until one fails;
all: those that the quick selection did not kill, with every test that touches the file;
check: whether the killers are still in the quick selection; their mutants are to be run again else.

Without names those run that have no result yet.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from tests.mutants import record
from tests.mutants.copy import Copy
from tests.mutants.touching import stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("near", "quick", "all", "check"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the copy goes away
    if given.command == "check":
        with Copy() as copy:
            check(copy)
    else:
        with Copy() as copy:
            for name in given.names or waiting(given.command):
                try:
                    run(copy, record.mutants()[name], given.command)
                except record.NotFound as error:  # the code is another by now
                    print(error)


def waiting(selection: str) -> list[str]:
    """Return the mutants to run: of all areas in turn, so that the first ones tell something of each."""
    quick = record.killers("quick")
    survived = {name for name, killer in quick.items() if not killer}
    wanted = survived if selection == "all" else record.mutants().keys() - quick.keys()
    names = wanted - record.killers(selection).keys() - record.equivalent().keys()
    return sorted(names, key=lambda name: (name.rpartition("-")[2], name))


def run(copy: Copy, mutant: record.Mutant, selection: str) -> None:
    """Run the tests that touch a mutant until one fails, and keep which one it was."""
    begun = time.monotonic()
    while (killer := find(copy, mutant, selection)) and not copy.trusts(killer):
        print(f"{killer} fails without a mutant, too", flush=True)
    seconds = round(time.monotonic() - begun)
    print(f"{mutant.name} {seconds:4} s  {killer or 'survived'}", flush=True)
    record.keep(mutant.name, "quick" if killer and selection == "near" else selection, killer, seconds, copy.commit)


def find(copy: Copy, mutant: record.Mutant, selection: str) -> str:
    """Return the first test that fails with a mutant, "" when none does; the one of last time is tried first."""
    last = record.killers(selection).get(mutant.name, "")
    lists = [*([[last]] if last else []), *stages(copy.root, mutant.file, near=selection == "near")]
    paged = mutant.file.endswith(".ts")
    try:
        with mutant.inside(copy.root):
            if paged and not copy.build():
                raise record.NotFound(f"{mutant.name}: the front end cannot be built with it")
            return next(filter(None, (copy.killer(tests, everything=selection == "all") for tests in lists)), "")
    finally:
        if paged:
            copy.take_built()


def check(copy: Copy) -> None:
    """Forget what tests said that the quick selection has no more."""
    selected = copy.selected()
    gone = {name: killer for name, killer in record.killers("quick").items() if killer and killer not in selected}
    print("\n".join(f"{name}: {killer} is not in the quick selection" for name, killer in gone.items()))
    record.forget(gone)


if __name__ == "__main__":
    main()
