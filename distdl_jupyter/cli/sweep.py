"""``distdl sweep``: a script with many values of its flags, and the best of them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import InvalidSpec, explain
from distdl_jupyter.core.humanize import number, short_id
from distdl_jupyter.core.state import State
from distdl_jupyter.form import arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.studies.sweeps import Sweep

_EXAMPLE = "Example: distdl sweep --param 'lr=loguniform(1e-4,1e-1)' --param width=64,128 --metric loss train.py"
#: Seconds between two looks at a sweep that is followed.
_LOOK = 0.5


def add_flags(one: argparse.ArgumentParser) -> None:
    """Add what is asked of a sweep beside a script and its options."""
    arguments.add_sweep_flags(one)
    one.add_argument("--param", action="append", default=[], metavar="NAME=VALUES", help="values of a script option: "
        "'lr=loguniform(1e-4,1e-1)' or width=64,128. Can be repeated")  # fmt: skip
    one.add_argument("--show", metavar="ID", help="show a sweep by its id, the last part of it, or: newest")
    one.add_argument("--stop", metavar="ID", help="cancel the running trials of a sweep, and start no more")
    one.add_argument("--resume", metavar="ID", help="continue a stopped or interrupted sweep; with --trials, up to "
        "that many trials")  # fmt: skip
    one.add_argument("--best", metavar="ID", help="rerun the best trial of a sweep, with the options given")
    one.add_argument("--json", action="store_true", help="print the sweep as JSON")


def run(chosen: argparse.Namespace, options: Mapping[str, Any]) -> int:
    """Carry the command out; ``options`` are those of each trial."""
    from distdl_jupyter.studies import sweep_study
    from distdl_jupyter.studies.sweeps import Sweep

    id_ = chosen.show or chosen.stop or chosen.resume or chosen.best
    if id_ is None:
        found = _started(chosen, options)
        print(found.id)
        if not chosen.follow:
            print(f"Follow it with: distdl sweep -f --show {short_id(found.id)}", file=sys.stderr)
            return 0
        return follow(found)
    found = Sweep(sweep_study.find("" if id_ == "newest" else id_))
    if chosen.best:
        job = found.best.run(**options)
        print(job.id)
        print(f"Follow it with: distdl logs -f {short_id(job.id)}", file=sys.stderr)
        return 0
    if chosen.stop:
        found.stop()
        while found.state is State.RUNNING:
            time.sleep(_LOOK)
    if chosen.resume:
        found.resume(getattr(chosen, "trials", None))
    if chosen.follow:
        return follow(found)
    print(json.dumps(dataclasses.asdict(found.panel), indent=1) if chosen.json else found)
    return 0


def _started(chosen: argparse.Namespace, options: Mapping[str, Any]) -> Sweep:
    from distdl_jupyter import capture
    from distdl_jupyter.core import space
    from distdl_jupyter.studies import sweeps

    if chosen.script is None or not chosen.param:
        raise InvalidSpec(
            "distdl sweep needs a script and the values of its options.", code="sweep-script-missing", hint=_EXAMPLE
        )
    parameters: dict[str, Any] = {}
    for text in chosen.param:
        name, equals, values = text.partition("=")
        if not equals or not name:
            raise InvalidSpec(
                f"--param {text} has no values.",
                code="sweep-parameter-without-values",
                field="parameters",
                hint=_EXAMPLE,
            )
        parameters[name.strip()] = space.parsed(name.strip(), values)
    draft = capture.capture_script(chosen.script, None, chosen.arguments)
    plan = {name: getattr(chosen, name) for name in arguments.SWEEP if hasattr(chosen, name)}
    return sweeps.of_draft(draft, space.checked(parameters), **plan, **options)


def follow(found: Sweep) -> int:
    """Print a line for each trial that ends, and then the sweep; return the exit code."""
    from distdl_jupyter.studies import sweeps
    from distdl_jupyter.views.sweep import word

    known: set[int] = set()
    try:
        while True:
            study = found.study
            for one in study.trials:
                if one.has_ended and one.number not in known:
                    known.add(one.number)
                    value = "no value" if one.value is None else f"{study.plan.metric} {number(one.value)}"
                    values = ", ".join(f"{name} {word(given)}" for name, given in one.params.items())
                    best = " (best)" if study.best is not None and study.best.number == one.number else ""
                    print(f"trial {one.number} {one.state}: {value}{best} with {values}", file=sys.stderr, flush=True)
            if study.state is not State.RUNNING:
                break
            time.sleep(_LOOK)
    except KeyboardInterrupt as interrupt:
        explain(interrupt, sweeps.interrupted(found, "distdl sweep --stop"))
        raise
    print(found)
    return 0 if study.state is State.COMPLETED else 1
