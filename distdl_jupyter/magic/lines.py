"""The line magics: list the jobs, show one, read its log, cancel it, list the clusters, set this kernel's defaults."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry
from distdl_jupyter.core.aliases import resolve
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import plural, short_id
from distdl_jupyter.core.options import ABOUT, check_count
from distdl_jupyter.core.profiles import rank_numbers
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.form.arguments import Parser, add_id, allowed, pairs_of, value_of
from distdl_jupyter.magic.session import Session, identifier, say, short_errors
from distdl_jupyter.magic.topics import TOPICS
from distdl_jupyter.views.job_table import JobTable

if TYPE_CHECKING:
    from distdl_jupyter.clusters.handle import Checks, ClusterList
    from distdl_jupyter.core.logfile import LogLine
    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.views.checkpoints import CheckpointList
    from distdl_jupyter.views.correctness import ComparisonShown
    from distdl_jupyter.views.profile import ProfileShown
    from distdl_jupyter.views.stacks import StacksShown

_TAIL = 200
#: Jobs that a list shows when not all are asked for.
_NEWEST = 20


class LineMagics:
    """The line magics of one kernel."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def all(self) -> dict[str, Callable[[str], Any]]:
        """Return the functions to register, by name; their docstrings are the help texts."""
        runs = (
            self._jobs,
            self._attach,
            self._logs,
            self._check,
            self._stacks,
            self._checkpoints,
            self._profile,
            self._time,
            self._resources,
            self._cancel,
            self._clusters,
            self._config,
        )
        return {f"dist_{run.__name__[1:]}": _magic(_parser(run.__name__[1:]), run) for run in runs}

    def _jobs(self, chosen: argparse.Namespace) -> JobTable:
        from distdl_jupyter.jobs import client, study_rows

        rows = study_rows.folded(client.rows())
        shown = rows if chosen.all else rows[:_NEWEST]
        return JobTable(shown, older=len(rows) - len(shown))

    def _attach(self, chosen: argparse.Namespace) -> Job | None:
        job = self._session.job(chosen.id)
        if chosen.out is None:
            return job
        self._session.keep(str(identifier(chosen.out)), job)
        return None

    def _logs(self, chosen: argparse.Namespace) -> None:
        job = self._session.job(chosen.id)
        many = job.spec.process_count > 1
        tail = None if chosen.follow or chosen.tail <= 0 else chosen.tail
        if tail and (left_out := _count(job, chosen.rank) - tail) > 0:
            say(f"{plural(left_out, 'earlier line')} not shown; use --tail 0 to print all lines")
        for line in job.logs(chosen.rank, follow=chosen.follow, tail=tail):
            say(_line(line, many=many))

    def _check(self, chosen: argparse.Namespace) -> ComparisonShown:
        from distdl_jupyter.studies import correctness

        return correctness.of_job(self._session.job(chosen.id), steps=chosen.steps)

    def _stacks(self, chosen: argparse.Namespace) -> StacksShown:
        job = self._session.job(chosen.id)
        if chosen.kept is None:
            return job.stacks()
        return job.stacks(kept=True, number=chosen.kept or None)

    def _checkpoints(self, chosen: argparse.Namespace) -> CheckpointList:
        return self._session.job(chosen.id).checkpoints()

    def _profile(self, chosen: argparse.Namespace) -> ProfileShown:
        job = self._session.job(chosen.id)
        if chosen.kept is None:
            return job.profile(chosen.steps, rank_numbers(chosen.ranks))
        return job.profile(kept=True, number=chosen.kept or None)

    def _time(self, chosen: argparse.Namespace) -> Any:
        times = self._session.job(chosen.id).time()
        return times.figure() if chosen.figure and times.rows else times

    def _resources(self, chosen: argparse.Namespace) -> Any:
        used = self._session.job(chosen.id).resources()
        return used.figure() if chosen.figure and used else used

    def _cancel(self, chosen: argparse.Namespace) -> None:
        job = self._session.job(chosen.id)
        job.cancel(now=chosen.now)
        say(f"{'Killing' if chosen.now else 'Canceling'} job {job.name} ({short_id(job.id)}).")

    def _clusters(self, chosen: argparse.Namespace) -> ClusterList | Checks:
        from distdl_jupyter.clusters.handle import clusters

        return clusters() if chosen.check is None else clusters()[chosen.check].check(chosen.backend)

    def _config(self, chosen: argparse.Namespace) -> Any:
        if chosen.settings and chosen.settings[0] in TOPICS:
            paged = hasattr(self._session.ip, "kernel")
            switched = [f"{word}=" if word in ("on", "off") else word for word in chosen.settings[1:]]
            return TOPICS[chosen.settings[0]](pairs(switched), paged)
        if chosen.clear:
            self._session.defaults.clear()
        changes = {name.replace("-", "_"): value for name, value in pairs(chosen.settings).items()}
        self._session.defaults = configured(self._session.defaults, changes)
        say(_settings(self._session.defaults))
        return None


def _magic(parser: Parser, run: Callable[[argparse.Namespace], Any]) -> Callable[[str], Any]:
    def magic(line: str) -> Any:
        with short_errors():
            return run(parser.parse(line))

    magic.__name__ = parser.prog
    magic.__doc__ = parser.format_help()
    return magic


def _parser(name: str) -> Parser:
    text, places, *options = _MAGICS[name]
    parser = Parser(f"%dist_{name}", text, places=places)
    if places == _ID:
        add_id(parser)
    for names, about in options:
        parser.add_argument(*names, **about)
    return parser


_ID = " [ID]"
_SWITCH = {"action": "store_true"}
_NUMBER = {"type": int, "metavar": "N"}
_KEPT = {**_NUMBER, "nargs": "?", "const": 0}
_CHECK = """
    Check the code of a job with short runs on several ranks and on one process.

    ``%%distributed --check`` does the same with a cell before it becomes a job.
    """
_CONFIG = """
    Show or set this kernel's defaults for %%distributed.

    Example: ``%dist_config process_count_per_node=2 distributed_backend=horovod-gloo``. An empty value removes one.
    ``%dist_config azure`` shows the Azure sign-in and signs in (``azure credential=device_code``);
    ``%dist_config monitoring enabled=true`` reports ended jobs to a monitoring system; ``%dist_config tracking
    track=mlflow`` tracks every job; ``%dist_config warm`` shows the state of warm starts (``warm off`` turns them
    off). These settings apply to all kernels.
    """
#: The text of each magic, what may follow its name, and its options as names and settings of argparse.
_MAGICS: dict[str, Any] = {
    "jobs": (
        "List all jobs, newest first, also those started outside this notebook.",
        "",
        (("-a", "--all"), _SWITCH | {"help": "Show all jobs (default: the newest 20)."}),
    ),
    "attach": (
        "Show a job live. ``job = %dist_attach k3f9`` returns the Job instead.",
        _ID,
        (("-o", "--out"), {"metavar": "NAME", "help": "Store the Job in this variable and show nothing."}),
    ),
    "logs": (
        "Print a job's log.",
        _ID,
        (("--rank",), _NUMBER | {"help": "Show only the lines of one rank."}),
        (("--tail",), _NUMBER | {"default": _TAIL, "help": f"Show the last N lines; 0: all (default {_TAIL})."}),
        (("-f", "--follow"), _SWITCH | {"help": "Follow the log until the job has ended."}),
    ),
    "check": (
        _CHECK,
        _ID,
        (("--steps",), _NUMBER | {"default": 3, "help": "Training steps of each run (default 3)."}),
    ),
    "stacks": (
        "Show the stack traces of all ranks side by side: where the stuck rank is, and what the others wait for.",
        _ID,
        (
            ("--kept",),
            _KEPT
            | {"help": "Show the newest captured stack traces, or those with this number, without capturing new ones."},
        ),
    ),
    "checkpoints": ("List the checkpoints of a job, newest first.", _ID),
    "profile": (
        "Profile the next steps of a running job: its slowest operators, and a trace of all ranks.",
        _ID,
        (("--steps",), _NUMBER | {"default": 5, "help": "How many steps (default 5, at most 50)."}),
        (("--ranks",), {"metavar": "0,1", "default": "", "help": "The ranks to profile (default: all)."}),
        (("--kept",), _KEPT | {"help": "Show the newest profile, or the one with this number, without recording."}),
    ),
    "time": (
        "Show the step time of a job rank by rank, and which rank delays the others.",
        _ID,
        (("--figure",), _SWITCH | {"help": "Show a bar for each rank instead of the table."}),
    ),
    "resources": (
        "Show the resource use of each rank: CPU, memory, GPU, and the disk and network of its machine.",
        _ID,
        (("--figure",), _SWITCH | {"help": "Show curves over time instead of the newest values."}),
    ),
    "cancel": (
        "Cancel a job: send INT, then TERM, then KILL, with a grace period between them.",
        _ID,
        (("--now",), _SWITCH | {"help": "Kill it at once."}),
    ),
    "clusters": (
        "List the clusters with their state, or check the nodes of one cluster.",
        "",
        (
            ("--check",),
            {
                "metavar": "NAME",
                "help": "Check every node of this cluster for problems that would keep a job from running.",
            },
        ),
        (("-b", "--backend"), {"metavar": "NAME", "help": "Also check what this backend needs."}),
    ),
    "config": (
        _CONFIG,
        " [azure|monitoring|tracking|warm] [NAME=VALUE ...]",
        (("settings",), {"nargs": "*", "metavar": "NAME=VALUE", "help": "Options, under any of their names."}),
        (("--clear",), _SWITCH | {"help": "Remove all defaults first."}),
    ),
}


def pairs(words: list[str]) -> dict[str, str]:
    """Return NAME=VALUE words as a dict. Raises InvalidSpec."""
    for word in words:
        if "=" not in word:
            raise InvalidSpec(
                f"{word!r} is not an assignment. Write NAME=VALUE.", code="setting-without-value", field=word
            )
    return dict(word.split("=", 1) for word in words)


def configured(defaults: dict[str, Any], changes: dict[str, str]) -> dict[str, Any]:
    """Return the defaults with the changes made and checked. Raises InvalidSpec."""
    names = {*ABOUT, *allowed()}
    removed = resolve({name: "" for name, text in changes.items() if not text}, names)
    given = {name: value_of(text) for name, text in changes.items() if text}
    if isinstance(env := given.pop("env", given.pop("environment_variables", None)), str):
        given["environment_variables"] = {**defaults.get("environment_variables", {}), **pairs_of(env.split(","))}
    result = {**defaults, **resolve(given, names)}
    result = {name: value for name, value in result.items() if name not in removed}
    _check_defaults(result)
    return result


def _check_defaults(options: dict[str, Any]) -> None:
    for name in ("node_count", "process_count_per_node"):
        if options.get(name, 1) != "auto" or name == "node_count":
            check_count(options.get(name, 1), name)
    if options.get("distributed_backend"):
        registry.backend(str(options["distributed_backend"]), {})
    if options.get("compute_target"):
        cluster_configs.find(str(options["compute_target"]))


def _settings(defaults: dict[str, Any]) -> str:
    if not defaults:
        return "No defaults are set. Example: %dist_config process_count_per_node=2"
    return "\n".join(f"{name} = {_shown(value)}" for name, value in sorted(defaults.items()))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={'•••' if is_secret(k, str(v)) else v}" for k, v in value.items())
    return str(value)


def _count(job: Job, rank: int | None) -> int:
    """Return how many lines there are now, of one rank when given."""
    view = job.view()
    if rank is None:
        return view.lines
    found = view.rank(rank)
    return found.lines if found else 0


def _line(line: LogLine, *, many: bool) -> str:
    who = "" if line.rank is None or not many else f"[{line.rank}] "
    return f"{who}{line.text}"
