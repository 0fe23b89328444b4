"""``distdl``: jobs and clusters from a terminal, or from a notebook as ``%distdl``.

The commands are a thin layer over ``client``: each parses its arguments, calls a function and returns a reply. Exit
codes: 0 success, 1 the job or check failed, 2 invalid arguments, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from distdl_jupyter._version import __version__
from distdl_jupyter.cli import azure, clusters, jobs, scripts
from distdl_jupyter.cli.command import Reply, add_command, filter_output, print_reply, run_command
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.form.arguments import Parser, to_flags

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = make_parser()
    try:
        args = parser.parse_args(argv)
        if not hasattr(args, "run"):
            parser.print_help()
            return 0
        # The installer redraws its progress line and prints no untrusted text.
        is_raw = args.run is _install or getattr(args, "raw", False)
        with contextlib.nullcontext() if is_raw else filter_output():
            return _run(args)
    except DistDLError as error:
        print(f"distdl: {to_flags(str(error))}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    try:
        reply = run_command(args)
        print_reply(reply, args)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt as interrupt:
        if interrupt.args:
            print(f"\ndistdl: {interrupt}", file=sys.stderr)
        return 130
    return reply.code


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``distdl``."""
    parser = Parser(prog="distdl", description="Run distributed training jobs.")
    parser.add_argument("--version", action="version", version=f"distdl {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in (jobs, scripts, clusters, azure):
        module.add_commands(commands)
    _add_setup(commands)
    return parser


# the installation -------------------------------------------------------------------------------------


def _add_setup(commands: Any) -> None:
    summary = "show the state of warm starts, turn them on or off, start or stop the template process"
    description = (
        "The template process keeps the imports of previous jobs loaded, so that jobs on this machine start faster. "
        "Without an action, show its state."
    )
    command = add_command(commands, "warm", _run_warm, summary, details=description, has_json=True)
    action_help = "start: wait until the template is ready; off: also stop the template"
    command.add_argument("action", nargs="?", choices=["start", "stop", "on", "off"], help=action_help)
    command.add_argument("--idle-minutes", type=float, metavar="M", help="how long an unused template keeps running")

    add_command(commands, "doctor", _run_doctor, "check the installation and suggest fixes", has_json=True)

    command = add_command(commands, "install", _install, "build and install backends that pip cannot install")
    command.add_argument("what", choices=["horovod"], help="backend to install")
    command.add_argument("--force", action="store_true", help="build again even if it is installed or cached")
    command.add_argument("--no-mpi", action="store_true", help="build without MPI, even if it is installed")
    command.add_argument(
        "--framework",
        metavar="NAMES",
        choices=["torch", "torch,tensorflow"],
        help="torch, or torch,tensorflow (default: torch, and the frameworks that it already supports)",
    )


def _run_warm(args: argparse.Namespace) -> Reply:
    from distdl_jupyter.warm import report, start

    if args.idle_minutes is not None:
        start.change_settings(idle_minutes=args.idle_minutes)
    if args.action in ("on", "off"):
        start.change_settings(enabled=args.action == "on")
    files = start.get_template_files()
    if args.action in ("stop", "off"):
        start.stop(files)
    elif args.action == "start":
        if not start.has_template(files):
            start.start_template(files)
        if start.wait_until_ready(files) is None:
            message = f"The template did not start. See the log: {files.log}"
            return Reply(report.read_state(), "\n".join([message, *report.describe()]), code=1)
    return Reply(report.read_state(), "\n".join(report.describe()))


def _run_doctor(_: argparse.Namespace) -> Reply:
    from distdl_jupyter.environment import doctor
    from distdl_jupyter.views import azure as azure_view
    from distdl_jupyter.warm import report

    rows = [*doctor.diagnose_with_progress(), *azure_view.check_sign_in(), *report.build_doctor_rows()]
    wants_plain_text = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    text = doctor.render(rows, use_color=sys.stdout.isatty() and not wants_plain_text)
    return Reply(rows, text, code=0 if doctor.has_no_failure(rows) else 1)


def _install(args: argparse.Namespace) -> Reply:
    from distdl_jupyter.environment import horovod

    return Reply(code=horovod.main(framework=args.framework, force=args.force, mpi=not args.no_mpi))
