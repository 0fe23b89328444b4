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
from distdl_jupyter.magic.session import Session, short_errors
from distdl_jupyter.magic.topics import TOPICS
from distdl_jupyter.views.job_table import JobTable

if TYPE_CHECKING:
    from distdl_jupyter.cluster_handles import Checks, ClusterList
    from distdl_jupyter.core.logline import LogLine
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
        return {
            "dist_jobs": _magic(_jobs_parser(), self._jobs),
            "dist_attach": _magic(_attach_parser(), self._attach),
            "dist_logs": _magic(_logs_parser(), self._logs),
            "dist_check": _magic(_check_parser(), self._check),
            "dist_stacks": _magic(_stacks_parser(), self._stacks),
            "dist_checkpoints": _magic(_checkpoints_parser(), self._checkpoints),
            "dist_profile": _magic(_profile_parser(), self._profile),
            "dist_time": _magic(_time_parser(), self._time),
            "dist_resources": _magic(_resources_parser(), self._resources),
            "dist_cancel": _magic(_cancel_parser(), self._cancel),
            "dist_clusters": _magic(_clusters_parser(), self._clusters),
            "dist_config": _magic(_config_parser(), self._config),
        }

    def _jobs(self, chosen: argparse.Namespace) -> JobTable:
        from distdl_jupyter.jobs import client, study_rows

        rows = study_rows.folded(client.rows())
        shown = rows if chosen.all else rows[:_NEWEST]
        return JobTable(shown, older=len(rows) - len(shown))

    def _attach(self, chosen: argparse.Namespace) -> Job | None:
        job = self._session.job(chosen.id)
        if chosen.out is None:
            return job
        if not chosen.out.isidentifier():
            raise InvalidSpec(
                f"--out must be a variable name, not {chosen.out!r}.",
                code="out-name-invalid",
                field="out",
            )
        self._session.keep(chosen.out, job)
        return None

    def _logs(self, chosen: argparse.Namespace) -> None:
        job = self._session.job(chosen.id)
        many = job.spec.process_count > 1
        tail = None if chosen.follow or chosen.tail <= 0 else chosen.tail
        if tail and (left_out := _count(job, chosen.rank) - tail) > 0:
            _say(f"{plural(left_out, 'earlier line')} not shown; use --tail 0 to print all lines")
        for line in job.logs(chosen.rank, follow=chosen.follow, tail=tail):
            _say(_line(line, many=many))

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
        _say(f"{'Killing' if chosen.now else 'Canceling'} job {job.name} ({short_id(job.id)}).")

    def _clusters(self, chosen: argparse.Namespace) -> ClusterList | Checks:
        from distdl_jupyter import cluster_handles

        return (
            cluster_handles.clusters()
            if chosen.check is None
            else cluster_handles.clusters()[chosen.check].check(chosen.backend)
        )

    def _config(self, chosen: argparse.Namespace) -> Any:
        if chosen.settings and chosen.settings[0] in TOPICS:
            paged = hasattr(self._session.ip, "kernel")
            switched = [f"{word}=" if word in ("on", "off") else word for word in chosen.settings[1:]]
            return TOPICS[chosen.settings[0]](pairs(switched), paged)
        if chosen.clear:
            self._session.defaults.clear()
        changes = {name.replace("-", "_"): value for name, value in pairs(chosen.settings).items()}
        self._session.defaults = configured(self._session.defaults, changes)
        _say(_settings(self._session.defaults))
        return None


def _magic(parser: Parser, run: Callable[[argparse.Namespace], Any]) -> Callable[[str], Any]:
    def magic(line: str) -> Any:
        with short_errors():
            return run(parser.parse(line))

    magic.__name__ = parser.prog
    magic.__doc__ = parser.format_help()
    return magic


def _with_id(parser: Parser) -> Parser:
    add_id(parser)
    return parser


def _jobs_parser() -> Parser:
    parser = Parser("%dist_jobs", "List all jobs, newest first, also those started outside this notebook.")
    parser.add_argument("-a", "--all", action="store_true", help="Show all jobs (default: the newest 20).")
    return parser


def _attach_parser() -> Parser:
    text = "Show a job live. ``job = %dist_attach k3f9`` returns the Job instead."
    parser = _with_id(Parser("%dist_attach", text, places=" [ID]"))
    parser.add_argument("-o", "--out", metavar="NAME", help="Store the Job in this variable and show nothing.")
    return parser


def _logs_parser() -> Parser:
    parser = _with_id(Parser("%dist_logs", "Print a job's log.", places=" [ID]"))
    parser.add_argument("--rank", type=int, metavar="N", help="Show only the lines of one rank.")
    parser.add_argument(
        "--tail", type=int, metavar="N", default=_TAIL, help=f"Show the last N lines; 0: all (default {_TAIL})."
    )
    parser.add_argument("-f", "--follow", action="store_true", help="Follow the log until the job has ended.")
    return parser


def _check_parser() -> Parser:
    text = (
        "\n    Check the code of a job with short runs on several ranks and on one process.\n\n    ``%%distributed "
        "--check`` does the same with a cell before it becomes a job.\n    "
    )
    parser = _with_id(Parser("%dist_check", text, places=" [ID]"))
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="Training steps of each run (default 3).")
    return parser


def _stacks_parser() -> Parser:
    text = "Show the stack traces of all ranks side by side: where the stuck rank is, and what the others wait for."
    parser = _with_id(Parser("%dist_stacks", text, places=" [ID]"))
    parser.add_argument("--kept", nargs="?", type=int, const=0, metavar="N",
                        help="Show the newest captured stack traces, or those with this number, without capturing "
                            "new ones.")  # fmt: skip
    return parser


def _checkpoints_parser() -> Parser:
    return _with_id(Parser("%dist_checkpoints", "List the checkpoints of a job, newest first.", places=" [ID]"))


def _profile_parser() -> Parser:
    text = "Profile the next steps of a running job: its slowest operators, and a trace of all ranks."
    parser = _with_id(Parser("%dist_profile", text, places=" [ID]"))
    parser.add_argument("--steps", type=int, metavar="N", default=5, help="How many steps (default 5, at most 50).")
    parser.add_argument("--ranks", metavar="0,1", default="", help="The ranks to profile (default: all).")
    parser.add_argument("--kept", nargs="?", type=int, const=0, metavar="N",
                        help="Show the newest profile, or the one with this number, without recording.")  # fmt: skip
    return parser


def _time_parser() -> Parser:
    text = "Show the step time of a job rank by rank, and which rank delays the others."
    parser = _with_id(Parser("%dist_time", text, places=" [ID]"))
    parser.add_argument("--figure", action="store_true", help="Show a bar for each rank instead of the table.")
    return parser


def _resources_parser() -> Parser:
    text = "Show the resource use of each rank: CPU, memory, GPU, and the disk and network of its machine."
    parser = _with_id(Parser("%dist_resources", text, places=" [ID]"))
    parser.add_argument("--figure", action="store_true", help="Show curves over time instead of the newest values.")
    return parser


def _cancel_parser() -> Parser:
    parser = _with_id(
        Parser(
            "%dist_cancel",
            "Cancel a job: send INT, then TERM, then KILL, with a grace period between them.",
            places=" [ID]",
        )
    )
    parser.add_argument("--now", action="store_true", help="Kill it at once.")
    return parser


def _clusters_parser() -> Parser:
    parser = Parser("%dist_clusters", "List the clusters with their state, or check the nodes of one cluster.")
    parser.add_argument("--check", metavar="NAME", help="Check every node of this cluster for problems that would "
        "keep a job from running.")  # fmt: skip
    parser.add_argument("-b", "--backend", metavar="NAME", help="Also check what this backend needs.")
    return parser


def _config_parser() -> Parser:
    text = (
        "\n    Show or set this kernel's defaults for %%distributed.\n\n    Example: ``%dist_config "
        "process_count_per_node=2 distributed_backend=horovod-gloo``. An empty value removes one.\n    "
        "``%dist_config azure`` shows the Azure sign-in and signs in (``azure credential=device_code``);\n    "
        "``%dist_config monitoring enabled=true`` reports ended jobs to a monitoring system; ``%dist_config "
        "tracking\n    track=mlflow`` tracks every job; ``%dist_config warm`` shows the state of warm starts "
        "(``warm off`` turns them\n    off). These settings apply to all kernels.\n    "
    )
    parser = Parser("%dist_config", text, places=" [azure|monitoring|tracking|warm] [NAME=VALUE ...]")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="Options, under any of their names.")
    parser.add_argument("--clear", action="store_true", help="Remove all defaults first.")
    return parser


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
    _check(result)
    return result


def _check(options: dict[str, Any]) -> None:
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


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a cell's output
