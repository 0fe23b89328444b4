"""Resolves option names: the names that similar tools use are accepted as aliases of the primary names.

Sources of the aliases: Azure ML's PyTorch estimator and v2 distributions, Batch AI, torchrun, horovodrun, accelerate,
SageMaker, TorchDistributor and HorovodRunner. An alias has the same meaning as in its tool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from typing import Any

from distdl_jupyter.core import options
from distdl_jupyter.core.errors import InvalidSpec

#: Aliases of the options of every job, with the primary name.
ALIASES: dict[str, str] = {alias: name for name, option in options.OPTIONS.items() for alias in option.aliases}

#: Aliases for the total number of processes, which is divided by the number of nodes.
TOTAL_NAMES = ("np", "num_proc", "num_processes", "num_workers")
#: Maps the command-line flag of each alias to its name, except ``--env`` and ``--use-gpu``, which are primary flags.
OTHER_FLAGS = {
    f"--{name.replace('_', '-')}": name for name in (*ALIASES, *TOTAL_NAMES) if name not in ("env", "useGpu")
}


def resolve(arguments: Mapping[str, Any], allowed: Iterable[str]) -> dict[str, Any]:
    """Return the options in ``arguments`` under their primary names.

    Raises InvalidSpec for an unknown name (the message suggests similar names), for one option given under two names
    with different values, and for a total number of processes that is not divisible by the number of nodes.
    ``np < 0`` means ``-np`` processes on this machine, as in HorovodRunner; ``local_mode=True`` means
    ``compute_target="local"``, as in TorchDistributor.
    """
    allowed = set(allowed)
    options: dict[str, Any] = {}
    spellings: dict[str, str] = {}
    totals: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in TOTAL_NAMES:
            totals[name] = value
            continue
        if name == "local_mode":
            if value is True:
                options["compute_target"] = "local"
            continue
        primary = ALIASES.get(name, name)
        if primary not in allowed:
            hint = "%%distributed? and 'distdl submit --help' list all options."
            raise InvalidSpec(describe_unknown(name, allowed), code="option-unknown", field=name, hint=hint)
        if primary in options and options[primary] != value:
            values = f"{options[primary]!r} and {value!r}"
            message = f"{spellings[primary]} and {name} are the same option, but their values differ: {values}."
            raise InvalidSpec(message, code="option-given-twice", field=primary, hint="Use only one of them.")
        options[primary], spellings[primary] = value, name
    _apply_totals(totals, options, spellings)
    return options


def _apply_totals(totals: dict[str, Any], resolved: dict[str, Any], spellings: dict[str, str]) -> None:
    for name, total in totals.items():
        if isinstance(total, bool) or not isinstance(total, int) or total == 0:
            message = f"{name} must be a nonzero integer, not {total!r}."
            raise InvalidSpec(message, code="process-total-invalid", field=name)
        if total < 0 and resolved.setdefault("compute_target", "local") != "local":
            message = f"A negative {name} means processes on this machine, not on compute_target."
            hint = "Remove compute_target or give a positive number."
            raise InvalidSpec(message, code="negative-process-count", field=name, hint=hint)
        node_count = resolved.get("node_count", 1)
        if not isinstance(node_count, int) or node_count < 1 or abs(total) % node_count:
            message = f"{name}={total} processes cannot be divided evenly among {node_count} nodes."
            hint = "Use process_count_per_node instead."
            raise InvalidSpec(message, code="processes-not-divisible", field=name, hint=hint)
        per_node = abs(total) // node_count
        if (existing := resolved.setdefault("process_count_per_node", per_node)) != per_node:
            spelling = spellings.get("process_count_per_node", "process_count_per_node")
            message = f"{name}={total} and {spelling}={existing} contradict each other."
            raise InvalidSpec(message, code="process-counts-differ", field=name, hint="Use only one of them.")


def override(options: Mapping[str, Any], updates: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` updated with ``updates``; an alias replaces its primary name, and vice versa."""
    replaced = {_primary_name(name) for name in updates}
    return {name: value for name, value in options.items() if _primary_name(name) not in replaced} | dict(updates)


def _primary_name(name: str) -> str:
    return "process_count_per_node" if name in TOTAL_NAMES else ALIASES.get(name, name)


#: Maximum number of allowed names, and of similar names, in an error message.
_MAX_LISTED, _MAX_SUGGESTED = 10, 5
#: Minimum similarity of a suggestion (1 is identical).
_MIN_SIMILARITY = 0.65
#: Maximum difference between the similarities of a suggestion and of the best one.
_MAX_SIMILARITY_GAP = 0.2


def describe_unknown(
    name: str, allowed: Iterable[str], kind: str = "option", owner: str = "", *, aliases: Mapping[str, str] = ALIASES
) -> str:
    """Return the error message for an unknown name with the nearest allowed names.

    ``owner`` is inserted after the name, such as "of the cluster lab" or "for monitoring". If no name is similar, the
    message lists all allowed names, unless the list is so long that it would hide the error.
    """
    names, text = sorted(allowed), _normalize(name)
    scores = dict.fromkeys(names, 0.0)
    for spelling, option in [*zip(names, names, strict=True), *aliases.items()]:
        if option in scores:  # an alias is replaced by its primary name
            letters = _normalize(spelling)
            ratio, prefix_ratio = (
                SequenceMatcher(None, text, other).ratio() for other in (letters, letters[: len(text)])
            )
            # If two spellings are equally similar, the shorter one wins.
            scores[option] = max(scores[option], max(ratio, 0.95 * prefix_ratio) - len(letters) / 10_000)
    min_score = max(_MIN_SIMILARITY, max(scores.values(), default=0.0) - _MAX_SIMILARITY_GAP)
    nearest = sorted((option for option in names if scores[option] >= min_score), key=lambda option: -scores[option])
    suggestion = f" Use one of: {', '.join(names)}." if len(names) <= _MAX_LISTED else ""
    if nearest:
        *others, last = nearest[:_MAX_SUGGESTED]
        suggestion = f" Did you mean {' or '.join(filter(None, (', '.join(others), last)))}?"
    return f"Unknown {kind} {name!r}{owner and ' '}{owner}.{suggestion}"


def _normalize(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
