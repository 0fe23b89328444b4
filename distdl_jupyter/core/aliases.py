"""The names of the field: ours are the primary ones, every alias of the neighbours is accepted.

Sources of the aliases: Azure ML's PyTorch estimator and v2 distributions, Batch AI, torchrun, horovodrun, accelerate,
SageMaker, TorchDistributor and HorovodRunner. An alias means what it means there.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from distdl_jupyter.core import options
from distdl_jupyter.core.errors import InvalidSpec

#: Options of every job, and those of the elastic backend, by what others call them.
ALIASES: dict[str, str] = {
    **{alias: name for name, about in options.ABOUT.items() for alias in about.aliases},
    "min_np": "min_process_count",
    "min_num_proc": "min_process_count",
    "host_discovery_script": "host_discovery",
    "elastic_timeout": "elastic_timeout_seconds",
}

#: Words that mean the total number of processes; divided by the nodes.
TOTALS = ("np", "num_proc", "num_processes", "num_workers")
#: The flags of a command line for all of these, with what each gives; ``--env`` and ``--use-gpu`` are flags of ours.
OTHER_FLAGS = {f"--{name.replace('_', '-')}": name for name in (*ALIASES, *TOTALS) if name not in ("env", "useGpu")}


def resolve(given: Mapping[str, Any], allowed: Iterable[str], common: Iterable[str] = ()) -> dict[str, Any]:
    """Return ``given`` options under their primary names.

    Raises InvalidSpec for a name that is unknown (the message names the nearest allowed one, one of ``common`` rather
    than others, or all), for one value given under two names, and for a total that does not divide by the nodes.
    ``np < 0`` means ``-np`` processes on this machine, as in HorovodRunner; ``local_mode=True`` means
    ``compute_target="local"``, as in TorchDistributor.
    """
    allowed = set(allowed)
    found: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    totals: dict[str, Any] = {}
    for name, value in given.items():
        if name in TOTALS:
            totals[name] = value
            continue
        if name == "local_mode":
            if value is True:
                found["compute_target"] = "local"
            continue
        primary = ALIASES.get(name, name)
        if primary not in allowed:
            raise InvalidSpec(unknown(name, allowed, common=common), code="option-unknown", field=name)
        if primary in found and found[primary] != value:
            raise InvalidSpec(
                f"{spelled[primary]} and {name} mean the same and differ: {found[primary]!r} and {value!r}.",
                code="option-given-twice",
                field=primary,
                hint="Give one of them.",
            )
        found[primary], spelled[primary] = value, name
    _apply_totals(totals, found, spelled)
    return found


def _apply_totals(totals: dict[str, Any], found: dict[str, Any], spelled: dict[str, str]) -> None:
    for name, total in totals.items():
        if isinstance(total, bool) or not isinstance(total, int) or total == 0:
            raise InvalidSpec(
                f"{name} is {total!r}, but it takes a whole number of processes.",
                code="process-total-invalid",
                field=name,
            )
        if total < 0:
            if found.get("compute_target", "local") != "local":
                raise InvalidSpec(
                    f"{name} below zero means processes on this machine.",
                    code="negative-process-count",
                    field=name,
                    hint="Leave compute_target out or give a positive number.",
                )
            found["compute_target"] = "local"
        nodes = found.get("node_count", 1)
        if not isinstance(nodes, int) or nodes < 1 or abs(total) % nodes:
            raise InvalidSpec(
                f"{name}={total} processes cannot be divided equally among {nodes} nodes.",
                code="processes-not-divisible",
                field=name,
                hint="Give process_count_per_node instead.",
            )
        per_node = abs(total) // nodes
        if found.get("process_count_per_node", per_node) != per_node:
            raise InvalidSpec(
                f"{name}={total} and {spelled.get('process_count_per_node', 'process_count_per_node')}="
                f"{found['process_count_per_node']} contradict each other.",
                code="process-counts-differ",
                field=name,
                hint="Give one of them.",
            )
        found["process_count_per_node"] = per_node


def override(options: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` where those of ``later`` replace what means the same under any name."""
    replaced = {_meaning(name) for name in later}
    return {name: value for name, value in options.items() if _meaning(name) not in replaced} | dict(later)


def _meaning(name: str) -> str:
    return "process_count_per_node" if name in TOTALS else ALIASES.get(name, name)


#: Names beyond which a list is long.
_LONG = 20
#: From so many letters on the beginning of a name is taken for it.
_BEGINNING = 3


def unknown(name: str, allowed: Iterable[str], what: str = "option", *, common: Iterable[str] = ()) -> str:
    """Return one sentence that answers an unknown name with the nearest allowed one, first of ``common``, or with all.

    A long list does not follow a good guess: it would hide it.
    """
    names = sorted(allowed)
    near = _near(name, names, frozenset(common))
    guess = f" Did you mean {near}?" if near else ""
    listed = "" if guess and len(names) > _LONG else f" Allowed: {', '.join(names)}."
    return f"{name!r} is no {what}.{guess}{listed}"


def _near(name: str, allowed: Iterable[str], common: frozenset[str]) -> str:
    """Return the nearest name as it is accepted, an alias for its primary name, "" when none is near.

    Of two that are about as near it is the common one, and the one that begins alike; the beginning of a name means it.
    """
    primary = {one: one for one in allowed}
    primary |= {alias: one for alias, one in ALIASES.items() if one in primary}

    def nearness(one: str) -> float:
        ratio = difflib.SequenceMatcher(None, one, name).ratio()
        return ratio + 0.1 * (primary[one] in common) + 0.1 * (one[:1] == name[:1]) + one.startswith(name)

    near = difflib.get_close_matches(name, primary, n=5)
    near += [one for one in primary if len(name) >= _BEGINNING and one.startswith(name)]
    return primary[max(near, key=nearness)] if near else ""
