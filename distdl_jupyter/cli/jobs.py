"""Commands to list, inspect, stop and delete jobs."""

from __future__ import annotations

import argparse
import getpass
import sys
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter.cli import show
from distdl_jupyter.cli.command import Reply, add_command, escape_unencodable, find_job, parse_ranks
from distdl_jupyter.core.errors import JobNotFound, JobNotRunning
from distdl_jupyter.core.humanize import clock, plural, short_id
from distdl_jupyter.core.options import OPTIONS
from distdl_jupyter.form import arguments
from distdl_jupyter.node.resources import SAMPLE_SECONDS
from distdl_jupyter.views.wire import encode

if TYPE_CHECKING:
    from pathlib import Path

    from distdl_jupyter.core.logfile import LogLine

#: Number of jobs that ``ls`` shows without ``--all``.
_MAX_LISTED = 20
#: Arguments of ``add_argument`` for a flag without a value.
_SWITCH: dict[str, Any] = {"action": "store_true"}
#: Arguments of ``add_argument`` for ``--recorded``, whose value is 0 without a number.
_RECORDED: dict[str, Any] = {"nargs": "?", "type": int, "const": 0, "metavar": "N"}
_PRUNE_DETAILS = (
    "With both --older and --keep, a job is deleted only if it is older and not among the newest N. Jobs that have not "
    "ended, here or on another host, and jobs of other users are kept. The exit code is 1 if a job could not be "
    "deleted."
)


def add_commands(commands: Any) -> None:
    """Add the commands to the parser of ``distdl``."""
    command = add_command(commands, "ls", _list_jobs, "list the jobs, newest first", has_json=True)
    command.add_argument("-a", "--all", **_SWITCH, help=f"show all jobs (default: the newest {_MAX_LISTED})")

    add_command(commands, "show", _show, "show the details of one job", has_json=True, job="newest")

    command = add_command(commands, "logs", _print_log, "print a job's log", job="newest")
    command.add_argument("-f", "--follow", **_SWITCH, help="follow the log until the job has ended")
    command.add_argument("--rank", type=int, help="only lines of one rank")
    command.add_argument(
        "--tail", type=int, metavar="N", help="only the last N lines (0: all); with -f, also the lines that follow"
    )
    command.add_argument("--time", **_SWITCH, help="prefix each line with its time")
    command.add_argument("--json", **_SWITCH, help="print each line as a JSON object")
    command.add_argument(
        "--raw",
        **_SWITCH,
        help="print output unchanged, including terminal control characters (default: text and colors only)",
    )

    summary = "stop a job: send INT, then TERM, then KILL, with a grace period between them"
    command = add_command(commands, "stop", _stop, summary, aliases=("cancel",), job="required")
    command.add_argument("--now", **_SWITCH, help="send KILL immediately")
    command.add_argument("--no-wait", **_SWITCH, help="do not wait for the job to stop")

    summary = "mark a job as lost when the host of its supervisor is gone for good"
    add_command(commands, "lost", _mark_lost, summary, job="required")

    summary = "print the packages that a job ran with, as a requirements.txt"
    command = add_command(commands, "environment", _show_environment, summary, has_json=True, job="newest")
    command.add_argument("--diff", **_SWITCH, help="print the uncommitted git changes at the start of the job")

    command = add_command(commands, "time", _show_time, "show step times rank by rank", has_json=True, job="newest")
    command.add_argument("--csv", **_SWITCH, help="print one line per rank and step, times in seconds")
    command.add_argument("--figure", **_SWITCH, help="show a bar for each rank instead of the table")

    summary = "show the stack traces of all ranks of a job side by side"
    command = add_command(commands, "stacks", _show_stacks, summary, has_json=True, job="newest")
    help_text = "show the newest captured stack traces, or those with this number, without capturing new ones"
    command.add_argument("--recorded", **_RECORDED, help=help_text)
    command.add_argument("--whole", **_SWITCH, help="print every thread of every rank in Python's format")
    command.add_argument("--timeout", type=float, default=10.0, metavar="S", help="seconds to wait (default 10)")

    summary = "profile some steps of a running job: its slowest operators, and a trace of each rank"
    command = add_command(commands, "profile", _profile, summary, has_json=True, job="newest")
    command.add_argument("--steps", type=int, default=5, metavar="N", help="number of steps (default 5, at most 50)")
    command.add_argument(
        "--ranks", default="", metavar="0,1", help="ranks to profile, such as 0,2 or 1-3 (default: all)"
    )
    help_text = "show the newest profile, or the one with this number, without recording"
    command.add_argument("--recorded", **_RECORDED, help=help_text)
    command.add_argument(
        "--save", default="", metavar="FOLDER", help="copy the traces to this folder, to open in ui.perfetto.dev"
    )
    command.add_argument("--csv", **_SWITCH, help="print one line per operator and rank, times in seconds")
    command.add_argument("--timeout", type=float, default=120.0, metavar="S", help="seconds to wait (default 120)")

    summary = "show the resource use of each rank: CPU, memory, GPU, and the disk and network of its machine"
    command = add_command(commands, "resources", _show_resources, summary, has_json=True, job="newest")
    command.add_argument("--csv", **_SWITCH, help="print all samples, one line per rank and second")
    command.add_argument("--figure", **_SWITCH, help="show curves over time instead of the newest values")
    command.add_argument("-f", "--follow", **_SWITCH, help="refresh every second until the job has ended")

    summary = "list the checkpoints of a job, newest first"
    command = add_command(commands, "checkpoints", _list_checkpoints, summary, has_json=True, job="newest")
    command.add_argument("--code", **_SWITCH, help="print the Python code that loads the newest checkpoint")

    summary = "send the data of a running or ended job to experiment trackers"
    command = add_command(commands, "track", _track, summary, has_json=True, job="required")
    trackers_help = "mlflow, tensorboard, wandb, or several separated by commas (default: the job's own trackers)"
    command.add_argument("--with", dest="trackers", default="", metavar="NAME", help=trackers_help)
    command.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="how long to wait for the trackers (default: 600)"
    )

    command = add_command(commands, "rm", _remove, "delete ended jobs with their logs and results")
    command.add_argument("id", nargs="+", help="ids of the jobs, or the last parts of ids")

    command = add_command(commands, "prune", _prune, "delete old ended jobs", details=_PRUNE_DETAILS, has_json=True)
    command.add_argument(
        "--older", metavar="AGE", help="only jobs that ended longer ago than this: 30d, 12h, 4w or 90min"
    )
    command.add_argument("--keep", type=int, metavar="N", help="keep the newest N of all jobs")
    command.add_argument("--dry-run", **_SWITCH, help="list the jobs that would be deleted, and delete nothing")

    summary = "list queued jobs with their position and what they wait for, or change their order"
    command = add_command(commands, "queue", _show_queue, summary, has_json=True)
    command.add_argument("--first", metavar="ID", help="start this job before your other queued jobs")
    command.add_argument("--priority", nargs=2, metavar=("N", "ID"), help="change the priority of this job")
    command.add_argument("--move", nargs=2, metavar=("CLUSTER", "ID"), help="start this job on another cluster")

    summary = "show or change where messages about jobs are sent through Apprise"
    command = add_command(commands, "notify", _notify, summary, has_json=True)
    exclusive = command.add_mutually_exclusive_group()
    address_help = (
        "read the address from the terminal without echo, or from standard input; it is a secret, so it cannot be an "
        "argument"
    )
    exclusive.add_argument("--set", **_SWITCH, help=address_help)
    exclusive.add_argument("--off", **_SWITCH, help="delete the address")
    kinds_help = "events to send: end, failure, stall, nan, rule, separated by commas"
    command.add_argument("--for", dest="kinds", metavar="KINDS", help=kinds_help)
    command.add_argument("--test", **_SWITCH, help="send a test message now")


# commands that only read ------------------------------------------------------------------------------


def _list_jobs(args: argparse.Namespace) -> Any:
    from distdl_jupyter.jobs import client, study_rows
    from distdl_jupyter.views.job_table import JobTable

    if args.json:
        return list(client.jobs())
    rows = study_rows.fold_rows(client.list_rows())
    listed_rows = rows if args.all else rows[:_MAX_LISTED]
    return JobTable(listed_rows, older=len(rows) - len(listed_rows))


def _show(args: argparse.Namespace) -> Reply:
    job = find_job(args.id)
    return Reply(job, "" if args.json else "\n".join(show.describe_job(job)))


def _print_log(args: argparse.Namespace) -> None:
    if args.raw:
        escape_unencodable()
    job = find_job(args.id)
    show_rank = job.spec.process_count > 1 and args.rank is None
    if args.tail and (omitted_count := _count_lines(job.view(), args.rank) - args.tail) > 0 and not args.follow:
        print(
            f"{plural(omitted_count, 'earlier line')} not shown; use --tail 0 to print all lines",
            file=sys.stderr,
            flush=True,
        )
    for line in job.logs(args.rank, follow=args.follow, tail=args.tail or None):
        prefix = format_prefix(line, show_rank=show_rank, show_time=args.time)
        text = encode(line).decode() if args.json else prefix + line.text
        print(text, flush=args.follow)


def _count_lines(view: Any, rank: int | None) -> int:
    """Return the current number of lines of one rank, or of the job if ``rank`` is None."""
    source = view if rank is None else view.find_rank(rank)
    return int(source.lines) if source else 0


def format_prefix(line: LogLine, *, show_rank: bool, show_time: bool = False) -> str:
    """Return the prefix of a log line: its time with ``show_time``, and its rank with ``show_rank``."""
    text = f"{clock(line.time)} " if show_time else ""
    if show_rank or line.rank is None:
        text += f"[{'job' if line.rank is None else line.rank}] "
    return text


def _show_environment(args: argparse.Namespace) -> Reply:
    environment = find_job(args.id).environment()
    if not args.diff:
        return Reply(environment, str(environment))
    if environment.git is None:
        raise JobNotFound(
            "No git information was recorded for this job.",
            code="git-unknown",
            hint="It ran outside a git repository.",
        )
    return Reply(text=environment.git.diff)


def _show_time(args: argparse.Namespace) -> Any:
    times = find_job(args.id).time()
    return times.figure() if args.figure and times.rows else times


def _show_resources(args: argparse.Namespace) -> Any:
    job = find_job(args.id)
    while args.follow and not job.state.ended:
        print(f"{job.resources()}\n", flush=True)
        time.sleep(SAMPLE_SECONDS)
    usage = job.resources()
    return usage.figure() if args.figure and usage else usage


def _show_stacks(args: argparse.Namespace) -> Reply:
    job = find_job(args.id)
    if args.recorded is None:
        try:
            stacks = job.stacks(args.timeout)
        except TimeoutError as error:
            raise JobNotRunning(str(error), code="stacks-timeout", hint="Increase it with --timeout.") from error
    else:
        stacks = job.stacks(recorded=True, number=args.recorded or None)
    ranks = stacks.ranks.values() if args.whole else ()
    texts = [
        f"\nrank {rank.rank}, pid {rank.pid} on {rank.host or 'this machine'}\n{rank.text.rstrip()}" for rank in ranks
    ]
    return Reply(stacks, notes=tuple(texts))


def _profile(args: argparse.Namespace) -> Reply:
    job = find_job(args.id)
    if args.recorded is None:
        ranks = parse_ranks(args.ranks, job.spec.process_count) if args.ranks else None
        try:
            profile = job.profile(args.steps, ranks, timeout=args.timeout)
        except TimeoutError as error:
            raise JobNotRunning(str(error), code="profile-timeout", hint="Increase it with --timeout.") from error
    else:
        profile = job.profile(recorded=True, number=args.recorded or None)
    traces = profile.save(args.save) if args.save else list(profile.traces.values())
    return Reply(profile, notes=_create_trace_note(traces) if traces else ())


def _create_trace_note(traces: list[Path]) -> tuple[str]:
    count = "one trace" if len(traces) == 1 else f"{len(traces)} traces"
    return (f"{traces[0].parent} has {count}, to open at https://ui.perfetto.dev",)


def _list_checkpoints(args: argparse.Namespace) -> Reply:
    checkpoints = find_job(args.id).checkpoints()
    return Reply(text=checkpoints[0].load_code) if args.code and checkpoints else Reply(checkpoints)


# commands that change something -----------------------------------------------------------------------


def _stop(args: argparse.Namespace) -> None:
    job = find_job(args.id)
    try:
        job.cancel(now=args.now)
    except JobNotRunning as error:
        print(error)
        return
    if args.no_wait:
        print(f"{'Killing' if args.now else 'Canceling'} job {job.name} ({short_id(job.id)}).")
        return
    if (supervisor := job.folder.read_supervisor()).is_on_other_host:
        print(supervisor.describe(), file=sys.stderr)
    print(f"{job.name} {short_id(job.id)} {job.wait().state.value}")


def _mark_lost(args: argparse.Namespace) -> None:
    job = find_job(args.id)
    job.declare_lost()
    print(f"{job.name} {short_id(job.id)} {job.state.value}")


def _remove(args: argparse.Namespace) -> None:
    for id_ in args.id:
        job = find_job(id_)
        job.remove()
        print(f"Deleted job {job.id}.")


def _prune(args: argparse.Namespace) -> Reply:
    from distdl_jupyter.jobs import retention

    report = retention.prune(args.older, args.keep, dry_run=args.dry_run)
    return Reply(report, code=1 if report.failed else 0)


def _track(args: argparse.Namespace) -> Reply:
    records = find_job(args.id).track(args.trackers, timeout=args.timeout)
    empty_message = "The job has no tracker. Choose one: --with mlflow, --with tensorboard or --with wandb."
    is_done = bool(records) and all(record.done for record in records)
    return Reply(records, "\n".join(map(str, records)) or empty_message, code=0 if is_done else 1)


def _show_queue(args: argparse.Namespace) -> Any:
    from distdl_jupyter.jobs import job_queue

    if args.first or args.priority:
        number, id_ = args.priority or (None, args.first)
        job = find_job(id_)
        priority = None if number is None else OPTIONS["priority"].check(arguments.parse_value(number), "priority")
        print(f"{job.name} {short_id(job.id)} has priority {job_queue.prioritize(job.id, priority)}")
        return None
    if args.move:
        target, id_ = args.move
        job = find_job(id_).move(target)
        print(f"{job.name} {short_id(job.id)} will start on {target}")
        return None
    return job_queue.queue()


def _notify(args: argparse.Namespace) -> Reply:
    from distdl_jupyter.tracking.messages import notifications

    address = "" if args.off else _ask_address() if args.set else None
    destination = notifications(address, args.kinds, test=args.test)
    text = f"Messages are sent to {destination}." if destination.service else "No address for messages is set."
    return Reply(destination, text, ("Test message sent.",) if args.test else ())


def _ask_address() -> str:
    return (
        getpass.getpass("Address, for example slack://... or jsons://HOST/PATH: ")
        if sys.stdin.isatty()
        else sys.stdin.readline()
    ).strip()
