"""``distdl``: jobs and clusters from a terminal, the environment's doctor and the one command that installs Horovod.

A thin adapter over ``client``: it parses, calls and prints. Exit codes: 0 done, 1 the job or check failed, 2 the
request was refused, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from distdl_jupyter._version import __version__
from distdl_jupyter.cli import (
    azure,
    clusters,
    notify,
    profile,
    prune,
    queue,
    resources,
    show,
    stacks,
    sweep,
    terminal,
    vm_sizes,
    warm,
)
from distdl_jupyter.core import table
from distdl_jupyter.core.aliases import OTHER_FLAGS, unknown
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobNotFound, JobNotRunning, explain
from distdl_jupyter.core.humanize import clock, finding, findings, listing, plural, short_id
from distdl_jupyter.core.options import ABOUT, flags
from distdl_jupyter.core.state import State
from distdl_jupyter.form import arguments
from distdl_jupyter.views import job_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distdl_jupyter.core.logfile import LogLine
    from distdl_jupyter.core.view import JobView
    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.studies.scaling import ScalingStudy

#: Jobs that a list shows when not all are asked for.
_NEWEST = 20


class _CommandParser(argparse.ArgumentParser):
    """Answers an unknown flag or command with the nearest ones."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words; what is no flag of this very command is refused here."""
        chosen, rest = super().parse_known_args(args, namespace)
        flag = next((word for word in rest if word.startswith("-")), "")
        if flag:
            self._refuse(f"{arguments.unknown_flag(self, flag)} List all options with: {self.prog} --help")
        return chosen, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action.choices, dict) and value not in action.choices:
            self._refuse(f"{unknown(value, action.choices, 'command')} List all commands with: {self.prog} --help")
        super()._check_value(action, value)

    def _refuse(self, text: str) -> NoReturn:
        # Without the usage: that of a job's flags is longer than a screen.
        self.exit(2, f"{self.prog}: {text}\n")


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _parser()
    chosen = parser.parse_args(words)
    run: Callable[[argparse.Namespace], int] | None = getattr(chosen, "run", None)
    if run is None:
        parser.print_help()
        return 0
    # What installs draws its progress itself, and prints no words of others.
    with contextlib.nullcontext() if run is _install or getattr(chosen, "raw", False) else terminal.guarded():
        return _run(run, chosen)


def _run(run: Callable[[argparse.Namespace], int], chosen: argparse.Namespace) -> int:
    try:
        return run(chosen)
    except DistDLError as error:
        print(f"distdl: {arguments.with_flags(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt as interrupt:
        if interrupt.args:
            print(f"\ndistdl: {interrupt}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _CommandParser(prog="distdl", description="Run distributed training jobs.")
    parser.add_argument("--version", action="version", version=f"distdl {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    one = _command(commands, "ls", _ls, "list the jobs, newest first")
    one.add_argument("--json", action="store_true", help="print whole views as JSON")
    one.add_argument("-a", "--all", action="store_true", help="show all jobs (default: the newest 20)")

    one = _command(commands, "show", _show, "show the details of one job")
    arguments.add_id(one)
    one.add_argument("--json", action="store_true", help="print all details as JSON")

    one = _command(commands, "logs", _logs, "print a job's log")
    arguments.add_id(one)
    one.add_argument("-f", "--follow", action="store_true", help="follow the log until the job has ended")
    one.add_argument("--rank", type=int, help="only lines of one rank")
    one.add_argument("--tail", type=int, metavar="N", help="only the last N lines; with -f, also the lines that follow")
    one.add_argument("--time", action="store_true", help="prefix each line with its time")
    one.add_argument("--raw", action="store_true", help="print output unchanged, including terminal control "
        "characters (default: text and colors only)")  # fmt: skip

    one = _command(
        commands,
        "stop",
        _stop,
        "stop a job: send INT, then TERM, then KILL, with a grace period between them",
        "cancel",
    )
    arguments.add_needed_id(one)
    one.add_argument("--now", action="store_true", help="send KILL at once")
    one.add_argument("--no-wait", action="store_true", help="do not wait for the job to stop")

    one = _command(commands, "lost", _lost, "mark a job as lost when the host of its supervisor is gone for good")
    arguments.add_needed_id(one)

    one = _command(
        commands, "environment", _environment, "print the packages that a job ran with, as a requirements.txt"
    )
    arguments.add_id(one)
    one.add_argument("--diff", action="store_true", help="print the uncommitted git changes at the start of the job")

    one = _command(commands, "time", _time, "show step times rank by rank")
    arguments.add_id(one)
    one.add_argument("--csv", action="store_true", help="print one line per rank and step, times in seconds")

    stacks.add_to(commands, _find)
    profile.add_to(commands, _find)
    resources.add_to(commands, _find)

    one = _command(commands, "checkpoints", _checkpoints, "list the checkpoints of a job, newest first")
    arguments.add_id(one)
    one.add_argument("--code", action="store_true", help="print the Python code that loads the newest checkpoint")

    one = _command(commands, "track", _track, "send the data of a running or ended job to experiment trackers")
    arguments.add_needed_id(one)
    said = "mlflow, tensorboard, wandb, or several separated by commas (default: the job's own trackers)"
    one.add_argument("--with", dest="trackers", default="", metavar="NAME", help=said)
    one.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="how long to wait for the trackers (default: 600)"
    )

    one = _command(commands, "fork", _fork, "start a new job that resumes from one checkpoint of a job")
    arguments.add_needed_id(one)
    one.add_argument("--step", type=float, metavar="N", help="checkpoint of this step (default: the newest)")
    one.add_argument("--checkpoint", metavar="PATH", help="checkpoint with this path, as listed by distdl checkpoints")
    arguments.add_job_flags(one, by_default="as in the old job")
    arguments.name_backends(one)
    one.add_argument("-f", "--follow", action="store_true", help="print the log until the job has ended")

    for one in (
        _command(commands, "resume", _resume, "start a new job that resumes from the checkpoints of an ended job"),
        _command(commands, "rerun", _rerun, "start a new job that repeats a job from its start"),
    ):
        arguments.add_needed_id(one)
        arguments.add_job_flags(one, by_default="as in the old job")
        arguments.name_backends(one)
        one.add_argument("-f", "--follow", action="store_true", help="print the log until the job has ended")

    one = _command(commands, "rm", _rm, "delete ended jobs with their logs and results")
    one.add_argument("id", nargs="+", help="ids of the jobs, or the last parts of ids")

    queue.add_to(commands, _find)
    notify.add_to(commands)
    prune.add_to(commands)
    _add_script_flags(_command(commands, "submit", _submit, "run a script as a distributed job"))
    one = _command(commands, "sweep", _sweep, "run a script with many values of its options and find the best")
    sweep.add_flags(one)
    _add_script_flags(one)
    one = _add_script_flags(
        _command(commands, "run", _submit, "run a script, print its log and wait for its end, like torchrun")
    )
    one.set_defaults(follow=True)
    one = _command(commands, "scale", _scale, "measure how a script scales, with short runs")
    one.add_argument(
        "--processes", default="1,2,4", metavar="1,2,4", help="numbers of processes to measure (default: 1,2,4)"
    )
    one.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="length of each run in seconds (default: 10)"
    )
    one.add_argument("--csv", action="store_true", help="print one line per number of processes, times in seconds")
    one.add_argument("--show", metavar="ID", help="show an existing study (its id or the last part of it)")
    one.add_argument("--resume", metavar="ID", help="continue an interrupted study; finished measurements are kept")
    _add_script_flags(one)
    one = _command(commands, "check", _check, "check a script or the code of a job with short runs")
    one.add_argument("--steps", type=int, default=3, metavar="N", help="training steps per run (default: 3)")
    one.add_argument("--json", action="store_true", help="print the findings as JSON")
    _add_script_flags(one)
    clusters.add_to(commands)
    azure.add_to(commands)
    vm_sizes.add_to(commands)
    warm.add_to(commands)
    _command(commands, "doctor", _doctor, "check the installation and suggest fixes")

    one = _command(commands, "install", _install, "build and install backends that pip cannot install")
    one.add_argument("what", choices=["horovod"], help="backend to install")
    one.add_argument("--force", action="store_true", help="build again even if it is installed or cached")
    one.add_argument("--no-mpi", action="store_true", help="leave MPI out even if one is installed")
    one.add_argument(
        "--framework",
        metavar="NAMES",
        choices=["torch", "torch,tensorflow"],
        help="torch, or torch,tensorflow (default: torch, and the frameworks that it already supports)",
    )
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str, *aliases: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", aliases=aliases
    )
    parser.set_defaults(run=run)
    return parser


def _add_script_flags(one: argparse.ArgumentParser) -> argparse.ArgumentParser:
    arguments.add_job_flags(one)
    arguments.name_backends(one)
    one.add_argument("-o", "--option", action="append", default=[], metavar="NAME=VALUE",
                     help="an option of the backend or the cluster, such as cycle_time_ms=0.5")  # fmt: skip
    one.add_argument("-f", "--follow", action="store_true", help="print the log until the job has ended")
    _add_other_flags(one)
    one.add_argument("script", nargs="?", help="Python script to run on every rank")
    one.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    return one


#: Flags of horovodrun, mpirun and torchrun that are written otherwise than all others.
_ODD_FLAGS = {"-np": "np", "--nproc": "np", "--nproc_per_node": "nproc_per_node"}


def _add_other_flags(one: argparse.ArgumentParser) -> None:
    """Add what other launchers call our options, without listing it."""
    for flag, name in (OTHER_FLAGS | _ODD_FLAGS).items():
        one.add_argument(flag, dest=name, type=_value, help=argparse.SUPPRESS)
    one.add_argument("-m", "--module", dest="module", help=argparse.SUPPRESS)


# commands --------------------------------------------------------------------------------------


def _ls(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.jobs import client, study_rows

    if chosen.json:
        print(json.dumps([_plain(job.view()) for job in client.jobs()], indent=1))
        return 0
    every = study_rows.folded(client.rows())
    rows = every if chosen.all else every[:_NEWEST]
    if not rows:
        print("No jobs yet. Start a cell with %%distributed -p 2, or run: distdl submit -p 2 train.py")
        return 0
    head = tuple(name.upper() for name in job_table.HEAD)
    print(table.text(table.WholeRows([head, *job_table.cells(rows, time.time(), signs=False)])))
    for line in job_table.lost_reasons(rows):
        print(line)
    if older := len(every) - len(rows):
        print(f"{plural(older, 'older job')} not shown: distdl ls --all")
    return 0


def _plain(view: JobView) -> dict[str, Any]:
    """Return the view as strict JSON data: numbers that are not finite become their names."""
    return json.loads(json.dumps(view.to_json()), parse_constant=str)  # type: ignore[no-any-return]


def _show(chosen: argparse.Namespace) -> int:
    job = _find(chosen.id)
    view = job.view()
    if chosen.json:
        print(json.dumps(_plain(view), indent=1))
        return 0
    print("\n".join(show.lines(view)))
    return 0


def _logs(chosen: argparse.Namespace) -> int:
    if chosen.raw:
        terminal.as_it_is()
    job = _find(chosen.id)
    many = job.spec.process_count > 1 and chosen.rank is None
    for line in job.logs(chosen.rank, follow=chosen.follow, tail=chosen.tail):
        print(_prefix(line, many=many, timed=chosen.time) + line.text, flush=chosen.follow)
    return 0


def _prefix(line: LogLine, *, many: bool, timed: bool) -> str:
    prefix = f"{clock(line.time)} " if timed else ""
    if many or line.rank is None:
        prefix += f"[{'job' if line.rank is None else line.rank}] "
    return prefix


def _stop(chosen: argparse.Namespace) -> int:
    job = _find(chosen.id)
    try:
        job.cancel(now=chosen.now)
    except JobNotRunning as error:
        print(error)
        return 0
    if not chosen.no_wait:
        if (supervisor := job.folder.supervisor()).is_elsewhere:
            print(supervisor.says(), file=sys.stderr)
        print(f"{job.name} {short_id(job.id)} {job.wait().state.value}")
    return 0


def _environment(chosen: argparse.Namespace) -> int:
    found = _find(chosen.id).environment()
    if not chosen.diff:
        print(found, end="")
    elif found.git is None:
        raise JobNotFound(
            "No git information was recorded for this job.",
            code="git-unknown",
            hint="It ran outside a git repository.",
        )
    else:
        print(found.git.diff, end="")
    return 0


def _time(chosen: argparse.Namespace) -> int:
    times = _find(chosen.id).time()
    print(times.to_pandas().to_csv(index=False, float_format="%.6f").rstrip() if chosen.csv else times)
    return 0


def _lost(chosen: argparse.Namespace) -> int:
    job = _find(chosen.id)
    job.declare_lost()
    print(f"{job.name} {short_id(job.id)} {job.state.value}")
    return 0


def _rm(chosen: argparse.Namespace) -> int:
    for id_ in chosen.id:
        job = _find(id_)
        job.remove()
        print(f"{job.id} removed")
    return 0


def _submit(chosen: argparse.Namespace) -> int:
    from distdl_jupyter import capture
    from distdl_jupyter.jobs import client

    _understand_launchers(chosen)
    if chosen.script is None:
        raise InvalidSpec(
            "distdl submit needs a script.",
            code="submit-script-missing",
            hint="Example: distdl submit -p 2 train.py",
        )
    options = _options(chosen)
    draft = capture.capture_script(chosen.script, None, chosen.arguments)
    _warn_of_arguments(chosen)
    return _started(client.launch(draft, **options), chosen)


def _scale(chosen: argparse.Namespace) -> int:
    if chosen.show:
        from distdl_jupyter.studies.scaling import scaling

        found = scaling(chosen.show)
    else:
        found = _measured(chosen)
    print(found.table.to_csv(index=False).rstrip() if chosen.csv else found)
    return 0


def _sweep(chosen: argparse.Namespace) -> int:
    _understand_launchers(chosen)
    return sweep.run(chosen, _options(chosen))


def _measured(chosen: argparse.Namespace) -> ScalingStudy:
    from distdl_jupyter import capture
    from distdl_jupyter.studies import scaling

    if chosen.resume:
        return scaling.resume(chosen.resume)
    _understand_launchers(chosen)
    if chosen.script is None:
        raise InvalidSpec(
            "distdl scale needs a script.",
            code="scale-script-missing",
            hint="Example: distdl scale --processes 1,2,4 train.py",
        )
    options = _options(chosen)
    draft = capture.capture_script(chosen.script, None, chosen.arguments)
    return scaling.of_options(draft, scaling.numbers(chosen.processes), options, seconds=chosen.seconds)


def _check(chosen: argparse.Namespace) -> int:
    from distdl_jupyter import capture
    from distdl_jupyter.studies import correctness

    _understand_launchers(chosen)
    if chosen.script is None:
        raise InvalidSpec(
            "distdl check needs a script or a job id.",
            code="check-script-missing",
            hint="Example: distdl check -p 2 train.py",
        )
    if Path(chosen.script).suffix or Path(chosen.script).exists():
        draft = capture.capture_script(chosen.script, None, chosen.arguments)
        found = correctness.of_draft(draft, steps=chosen.steps, **_options(chosen))
    else:
        found = correctness.of_job(_find(chosen.script), steps=chosen.steps, **_options(chosen))
    print(json.dumps(found.to_json(), indent=1) if chosen.json else found)
    return 0 if found.is_right else 1


def _understand_launchers(chosen: argparse.Namespace) -> None:
    """Take a leading ``python`` away; answer another launcher, or a module, with what to write. Raises InvalidSpec."""
    program = Path(chosen.script or "").name
    if re.fullmatch(r"python[\d.]*", program) and chosen.arguments and not Path(chosen.script).is_file():
        chosen.script, *chosen.arguments = chosen.arguments
    if chosen.module or chosen.script == "-m":
        module = chosen.module or next(iter(chosen.arguments), "train")
        raise InvalidSpec(
            "distdl submit needs the file of a script, not a module.",
            code="submit-module",
            field="script",
            hint=f"Run: distdl submit -p 2 {module.replace('.', '/')}.py",
        )
    replaced = {} if program.endswith(".py") else _replaced_programs()
    if backend := replaced.get(program):
        script = next((word for word in chosen.arguments if word.endswith(".py")), "train.py")
        raise InvalidSpec(
            f"distdl submit starts the processes itself. Do not use {program} with it.",
            code="submit-launcher",
            field="script",
            hint=f"Run: distdl submit -p 2 -b {backend} {script}",
        )


def _replaced_programs() -> dict[str, str]:
    """Return the programs that start processes as distdl submit does, with the backend that stands for each."""
    from distdl_jupyter.core import registry

    return {program: label for one in registry.backends() for program, label in one.replaces.items()}


#: Flags that many a script takes itself.
_OF_SCRIPTS = ("-b", "--name", "--data", "--env", "--outputs", "--use-gpu", "--vm-size", "--price-per-hour")


def _warn_of_arguments(chosen: argparse.Namespace) -> None:
    """Say that words behind the script are its own, where they look like what was meant for this command."""
    ours = {flag for name in ABOUT for flag in flags(name)}.difference(_OF_SCRIPTS)
    meant = [word for word in chosen.arguments if word.partition("=")[0] in ours]
    if meant:
        print(f"{listing(meant)} after {chosen.script} "
            f"{'is passed to the script' if len(meant) == 1 else 'are passed to the script'}. Put options of "
            "distdl submit before the script.", file=sys.stderr)  # fmt: skip


def _resume(chosen: argparse.Namespace) -> int:
    return _started(_find(chosen.id).resume(**_given(chosen)), chosen)


def _rerun(chosen: argparse.Namespace) -> int:
    return _started(_find(chosen.id).rerun(**_given(chosen)), chosen)


def _checkpoints(chosen: argparse.Namespace) -> int:
    known = _find(chosen.id).checkpoints()
    print(known[0].load_code if chosen.code and known else known)
    return 0


def _track(chosen: argparse.Namespace) -> int:
    found = _find(chosen.id).track(chosen.trackers, timeout=chosen.timeout)
    print("\n".join(map(str, found)) or "The job has no tracker. Choose one with --with mlflow, tensorboard or wandb.")
    return 0 if found and all(one.done for one in found) else 1


def _fork(chosen: argparse.Namespace) -> int:
    job = _find(chosen.id)
    return _started(job.fork(chosen.step, chosen.checkpoint, **_given(chosen)), chosen)


def _started(job: Job, chosen: argparse.Namespace) -> int:
    for line in findings(job.spec.findings):
        print(line, file=sys.stderr)
    if not chosen.follow:
        print(job.id)
        print(f"Follow it with: distdl logs -f {short_id(job.id)}", file=sys.stderr)
        return 0
    return _follow(job)


def _options(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the options that were given, those of backends and clusters too."""
    own = {name: _value(text) for name, text in _pairs(chosen.option).items()}
    others = {name: getattr(chosen, name, None) for name in OTHER_FLAGS.values()}
    return {**own, **_given(chosen), **{name: value for name, value in others.items() if value is not None}}


def _given(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the options of every job that were given."""
    given = {name: getattr(chosen, name) for name in ABOUT if hasattr(chosen, name)}
    if "environment_variables" in given:
        given["environment_variables"] = arguments.pairs_of(given["environment_variables"])
    return given


def _follow(job: Job) -> int:
    from distdl_jupyter.jobs import client

    try:
        for line in job.logs(follow=True):
            print(_prefix(line, many=job.spec.process_count > 1, timed=False) + line.text, flush=True)
    except KeyboardInterrupt as interrupt:
        explain(interrupt, client.interrupted(job, "distdl stop"))
        raise
    view = job.view()
    print("\n".join(show.ending(view, [finding(one) for one in job.spec.findings])), file=sys.stderr)
    return 0 if view.state is State.COMPLETED else 1


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _value(text: str) -> Any:
    """Return what JSON reads in the text (true, 3, 0.5, "3"), else the text itself."""
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return text


def _find(id_: str | None) -> Job:
    from distdl_jupyter.jobs import client

    try:
        return client.attach(id_)
    except JobNotFound as error:
        hint = "List the jobs with 'distdl ls'." if id_ is not None else "Start one with: distdl submit -p 2 train.py"
        raise JobNotFound(error.message, code=error.code, hint=hint) from None


def _doctor(_chosen: argparse.Namespace) -> int:
    from distdl_jupyter.environment import doctor
    from distdl_jupyter.views import azure
    from distdl_jupyter.warm import report

    return doctor.main(lambda: [*azure.doctor_rows(), *report.rows()])


def _install(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.environment import horovod

    return horovod.main(framework=chosen.framework, force=chosen.force, mpi=not chosen.no_mpi)
