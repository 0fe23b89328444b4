"""Commands that start jobs: run a script once or many times, or rerun a job."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.cli import show
from distdl_jupyter.cli.command import Reply, add_command, find_job
from distdl_jupyter.cli.jobs import format_prefix
from distdl_jupyter.core.errors import InvalidSpec, explain
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import finding, findings, listing, number, short_id
from distdl_jupyter.core.options import OPTIONS, OTHER_FLAGS, list_flags
from distdl_jupyter.form import arguments

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.form.arguments import Parser
    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.studies.sweeps import Sweep

#: Seconds between two polls of a sweep.
_POLL_SECONDS = 0.5
_SWEEP_HINT = "Run: distdl sweep --param 'lr=loguniform(1e-4,1e-1)' --param width=64,128 --metric loss train.py"


def add_commands(commands: Any) -> None:
    """Add the commands to the parser of ``distdl``."""
    _add_script_flags(add_command(commands, "submit", _submit, "run a script as a distributed job"))
    summary = "run a script, print its log and wait for its end, like torchrun"
    _add_script_flags(add_command(commands, "run", _submit, summary)).set_defaults(follow=True)

    summary = "run a script with many values of its options and find the best"
    command = add_command(commands, "sweep", _run_sweep, summary, has_json=True)
    arguments.add_sweep_flags(command)
    values_help = "values of a script option: 'lr=loguniform(1e-4,1e-1)' or width=64,128. Can be repeated"
    command.add_argument("--param", action="append", default=[], metavar="NAME=VALUES", help=values_help)
    command.add_argument("--show", metavar="ID", help="show a sweep: its id, the last part of its id, or newest")
    command.add_argument("--stop", metavar="ID", help="cancel the running trials of a sweep, and start no more")
    resume_help = "continue a stopped or interrupted sweep; with --trials, up to that many trials"
    command.add_argument("--resume", metavar="ID", help=resume_help)
    command.add_argument("--best", metavar="ID", help="rerun the best trial of a sweep, with the options given")
    _add_script_flags(command)

    command = add_command(commands, "scale", _scale, "measure how a script scales, with short runs", has_json=True)
    command.add_argument(
        "--processes", default="1,2,4", metavar="1,2,4", help="numbers of processes to measure (default: 1,2,4)"
    )
    command.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="length of each run in seconds (default: 10)"
    )
    command.add_argument("--csv", action="store_true", help="print one line per number of processes, times in seconds")
    command.add_argument("--show", metavar="ID", help="show an existing study (its id or the last part of it)")
    resume_help = "continue an interrupted study; finished measurements are kept"
    command.add_argument("--resume", metavar="ID", help=resume_help)
    _add_script_flags(command)

    summary = "check a script or the code of a job with short runs"
    command = add_command(commands, "check", _check, summary, has_json=True)
    command.add_argument("--steps", type=int, default=3, metavar="N", help="training steps per run (default: 3)")
    _add_script_flags(command)

    summary = "start a new job that resumes from one checkpoint of a job"
    command = _add_rerun(
        commands, "fork", summary, lambda job, args: job.fork(args.step, args.checkpoint, **_get_job_options(args))
    )
    command.add_argument("--step", type=float, metavar="N", help="checkpoint of this step (default: the newest)")
    path_help = "checkpoint with this path, as listed by distdl checkpoints"
    command.add_argument("--checkpoint", metavar="PATH", help=path_help)
    summary = "start a new job that resumes from the checkpoints of an ended job"
    _add_rerun(commands, "resume", summary, lambda job, args: job.resume(**_get_job_options(args)))
    summary = "start a new job that repeats a job from its start"
    _add_rerun(commands, "rerun", summary, lambda job, args: job.rerun(**_get_job_options(args)))


def _add_rerun(commands: Any, name: str, text: str, start: Callable[[Job, argparse.Namespace], Job]) -> Parser:
    def run(args: argparse.Namespace) -> Reply:
        return _report(start(find_job(args.id), args), args)

    command = add_command(commands, name, run, text, job="required")
    arguments.add_job_flags(command, default_text="as in the old job")
    command.add_argument("-f", "--follow", action="store_true", help="print the log until the job has ended")
    return command


def _add_script_flags(command: Parser) -> Parser:
    arguments.add_job_flags(command)
    option_help = "an option of the backend or the cluster, such as cycle_time_ms=0.5"
    command.add_argument("-o", "--option", action="append", default=[], metavar="NAME=VALUE", help=option_help)
    command.add_argument("-f", "--follow", action="store_true", help="print the log until the job has ended")
    add_other_flags(command)
    command.add_argument("script", nargs="?", help="Python script to run on every rank")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    return command


#: Flags of horovodrun, mpirun and torchrun that are not spelled like the option with dashes.
_UNUSUAL_FLAGS = {"-np": "np", "--nproc": "np", "--nproc_per_node": "nproc_per_node"}


def add_other_flags(command: argparse.ArgumentParser) -> None:
    """Add the flags of other launchers for options of this package; the help does not list them."""
    for flag, name in (OTHER_FLAGS | _UNUSUAL_FLAGS).items():
        command.add_argument(flag, dest=name, type=_parse_value, help=argparse.SUPPRESS)
    command.add_argument("-m", "--module", dest="module", help=argparse.SUPPRESS)


# one job ----------------------------------------------------------------------------------------------


def _submit(args: argparse.Namespace) -> Reply:
    from distdl_jupyter.jobs import client

    draft, options = _capture_script(args)
    _warn_misplaced(args)
    return _report(client.launch(draft, **options), args)


def _capture_script(args: argparse.Namespace) -> tuple[CapturedCode, dict[str, Any]]:
    """Return the captured script and the options. Raises InvalidSpec if no script is named."""
    from distdl_jupyter import capture

    _check_launcher(args)
    if args.script is None:
        command = args.command
        raise InvalidSpec(
            f"distdl {command} needs a script.",
            code="submit-script-missing",
            field="script",
            hint=f"Run: distdl {command} -p 2 train.py",
        )
    options = _get_all_options(args)
    return capture.capture_script(args.script, None, args.arguments), options


def _report(job: Job, args: argparse.Namespace) -> Reply:
    for line in findings(job.spec.findings):
        print(line, file=sys.stderr)
    if not args.follow:
        return _print_id(job, f"distdl logs -f {short_id(job.id)}")
    return _follow(job)


def _print_id(handle: Any, command: str) -> Reply:
    print(handle.id)
    print(f"Follow it with: {command}", file=sys.stderr)
    return Reply(handle, "")


def _follow(job: Job) -> Reply:
    from distdl_jupyter.jobs import client

    try:
        for line in job.logs(follow=True):
            print(format_prefix(line, show_rank=job.spec.process_count > 1) + line.text, flush=True)
    except KeyboardInterrupt as interrupt:
        explain(interrupt, client.describe_interrupt(job, "distdl stop"))
        raise
    view = job.view()
    print("\n".join(show.describe_end(view, [finding(item) for item in job.spec.findings])), file=sys.stderr)
    return Reply(job, "", code=0 if view.state is State.COMPLETED else 1)


def _check_launcher(args: argparse.Namespace) -> None:
    """Remove ``python`` before the script. Raises InvalidSpec with the correct command for a launcher or a module."""
    program = Path(args.script or "").name
    if re.fullmatch(r"python[\d.]*", program) and args.arguments and not Path(args.script).is_file():
        args.script, *args.arguments = args.arguments
    if args.module or args.script == "-m":
        module = args.module or next(iter(args.arguments), "train")
        raise InvalidSpec(
            "distdl submit needs the file of a script, not a module.",
            code="submit-module",
            field="script",
            hint=f"Run: distdl submit -p 2 {module.replace('.', '/')}.py",
        )
    backends = {} if program.endswith(".py") else _list_launcher_backends()
    if backend := backends.get(program):
        script = next((argument for argument in args.arguments if argument.endswith(".py")), "train.py")
        raise InvalidSpec(
            f"distdl submit starts the processes itself. Do not use {program} with it.",
            code="submit-launcher",
            field="script",
            hint=f"Run: distdl submit -p 2 -b {backend} {script}",
        )


def _list_launcher_backends() -> dict[str, str]:
    """Return the backend for each launcher program that ``distdl submit`` replaces."""
    from distdl_jupyter.core import registry

    return {program: label for backend in registry.load_backends() for program, label in backend.replaces.items()}


#: Flags that many scripts define as well.
_SCRIPT_FLAGS = ("-b", "--name", "--data", "--env", "--outputs", "--use-gpu", "--vm-size", "--price-per-hour")


def _warn_misplaced(args: argparse.Namespace) -> None:
    """Warn about arguments after the script that look like options of this command."""
    options = {flag for name in OPTIONS for flag in list_flags(name)}.difference(_SCRIPT_FLAGS)
    misplaced = [argument for argument in args.arguments if argument.partition("=")[0] in options]
    if misplaced:
        verb = "is" if len(misplaced) == 1 else "are"
        text = f"{listing(misplaced)} after {args.script} {verb} passed to the script."
        print(f"{text} Put options of distdl submit before the script.", file=sys.stderr)


def _get_all_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options on the command line, including options of backends and clusters."""
    plugin_options = {name: _parse_value(text) for name, text in arguments.parse_pairs(args.option).items()}
    launcher_options = {name: getattr(args, name, None) for name in OTHER_FLAGS.values()}
    return {
        **plugin_options,
        **_get_job_options(args),
        **{name: value for name, value in launcher_options.items() if value is not None},
    }


def _get_job_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options on the command line that every job has."""
    options = {name: getattr(args, name) for name in OPTIONS if hasattr(args, name)}
    if "environment_variables" in options:
        options["environment_variables"] = arguments.parse_env(options["environment_variables"])
    return options


def _parse_value(text: str) -> Any:
    """Return the text parsed as JSON (true, 3, 0.5, "3"), or the text itself if it is not valid JSON."""
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return text


# several jobs -----------------------------------------------------------------------------------------


def _scale(args: argparse.Namespace) -> Any:
    from distdl_jupyter.studies import scaling

    if args.show:
        return scaling.scaling(args.show)
    if args.resume:
        return scaling.scaling(args.resume).resume()
    draft, options = _capture_script(args)
    return scaling.scale_with_options(draft, scaling.parse_counts(args.processes), options, seconds=args.seconds)


def _check(args: argparse.Namespace) -> Reply:
    from distdl_jupyter import capture
    from distdl_jupyter.studies import correctness

    _check_launcher(args)
    if args.script is None:
        raise InvalidSpec(
            "distdl check needs a script or a job id.",
            code="check-script-missing",
            hint="Run: distdl check -p 2 train.py",
        )
    options = _get_all_options(args)
    is_file = Path(args.script).suffix or Path(args.script).exists()
    code = capture.capture_script(args.script, None, args.arguments) if is_file else find_job(args.script)
    comparison = correctness.compare(code, steps=args.steps, **options)
    return Reply(comparison, code=0 if comparison.is_right else 1)


def _run_sweep(args: argparse.Namespace) -> Any:
    from distdl_jupyter.studies import sweep_study
    from distdl_jupyter.studies.sweeps import Sweep

    _check_launcher(args)
    options = _get_all_options(args)
    id_ = args.show or args.stop or args.resume or args.best
    if id_ is None:
        sweep = _start_sweep(args, options)
        if not args.follow:
            return _print_id(sweep, f"distdl sweep -f --show {short_id(sweep.id)}")
        print(sweep.id)
        return _follow_sweep(sweep)
    sweep = Sweep(sweep_study.find_id("" if id_ == "newest" else id_))
    if args.best:
        job = sweep.best.run(**options)
        return _print_id(job, f"distdl logs -f {short_id(job.id)}")
    if args.stop:
        sweep.stop()
        while sweep.state is State.RUNNING:
            time.sleep(_POLL_SECONDS)
    if args.resume:
        sweep.resume(getattr(args, "trials", None))
    if args.follow:
        return _follow_sweep(sweep)
    return sweep.panel if args.json else sweep


def _start_sweep(args: argparse.Namespace, options: Mapping[str, Any]) -> Sweep:
    from distdl_jupyter import capture
    from distdl_jupyter.core import space
    from distdl_jupyter.studies import sweeps

    if args.script is None or not args.param:
        raise InvalidSpec(
            "distdl sweep needs a script and the values of its options.", code="sweep-script-missing", hint=_SWEEP_HINT
        )
    parameters: dict[str, Any] = {}
    for text in args.param:
        name, equals, values = text.partition("=")
        if not equals or not name:
            raise InvalidSpec(
                f"--param {text} has no values.",
                code="sweep-parameter-without-values",
                field="parameters",
                hint=_SWEEP_HINT,
            )
        parameters[name.strip()] = space.parse_domain(name.strip(), values)
    draft = capture.capture_script(args.script, None, args.arguments)
    plan = {name: getattr(args, name) for name in arguments.SWEEP_FLAGS if hasattr(args, name)}
    return sweeps.sweep_draft(draft, space.check_space(parameters), **plan, **options)


def _follow_sweep(sweep: Sweep) -> Reply:
    """Print a line for each trial when it has ended, until the sweep has ended."""
    from distdl_jupyter.studies import sweeps
    from distdl_jupyter.views.sweep import format_value

    printed_numbers: set[int] = set()
    try:
        while True:
            study = sweep.study
            for trial in study.trials:
                if trial.has_ended and trial.number not in printed_numbers:
                    printed_numbers.add(trial.number)
                    value = "no value" if trial.value is None else f"{study.plan.metric} {number(trial.value)}"
                    values = ", ".join(f"{name} {format_value(text)}" for name, text in trial.params.items())
                    best = " (best)" if study.best is not None and study.best.number == trial.number else ""
                    line = f"trial {trial.number} {trial.state}: {value}{best} with {values}"
                    print(line, file=sys.stderr, flush=True)
            if study.state is not State.RUNNING:
                break
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt as interrupt:
        explain(interrupt, sweeps.describe_interrupt(sweep, "distdl sweep --stop"))
        raise
    return Reply(sweep, code=0 if study.state is State.COMPLETED else 1)
