"""``%distdl`` runs a command of the command line in this notebook, and ``%dist_config`` sets the kernel's defaults.

The other line magics are short names of commands: ``%dist_logs -f k3f9`` runs ``%distdl logs -f k3f9``.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry
from distdl_jupyter.core.options import checked
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.form.arguments import Parser, asks_help, pairs, pairs_of, split_words, value_of
from distdl_jupyter.jobs import jobspec
from distdl_jupyter.magic.session import Session, as_magic, say
from distdl_jupyter.magic.topics import TOPICS

#: The ``distdl`` command that each line magic runs.
COMMANDS = {
    "distdl": "",
    "dist_jobs": "ls",
    "dist_attach": "show",
    "dist_logs": "logs --tail 200",
    "dist_check": "check",
    "dist_stacks": "stacks",
    "dist_checkpoints": "checkpoints",
    "dist_profile": "profile",
    "dist_time": "time",
    "dist_resources": "resources",
    "dist_cancel": "stop --no-wait",
    "dist_clusters": "clusters",
}
#: Methods that mark objects with a rich display.
_DISPLAYS = ("_repr_html_", "_repr_mimebundle_", "_ipython_display_")
_CONFIG = """
    Show or set this kernel's defaults for %%distributed.

    Example: ``%dist_config process_count_per_node=2 distributed_backend=horovod-gloo``. An empty value removes one.
    ``%dist_config azure`` shows the Azure sign-in and signs in (``azure credential=device_code``);
    ``%dist_config monitoring enabled=true`` reports ended jobs to a monitoring system; ``%dist_config tracking
    track=mlflow`` tracks every job; ``%dist_config warm`` shows the state of warm starts (``warm off`` turns them
    off). These settings apply to all kernels.
    """


class LineMagics:
    """The line magics of one kernel."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def all(self) -> dict[str, Callable[[str], Any]]:
        """Return the functions to register, by name; their docstrings are the help texts."""
        config = as_magic("dist_config", self._config, config_parser().format_help())
        return {**{name: self._command(name) for name in COMMANDS}, "dist_config": config}

    def _command(self, name: str) -> Callable[[str], Any]:
        command = " ".join(["distdl", *shlex.split(COMMANDS[name])[:1]])
        text = f"Run ``{command}`` in this notebook and return what it shows. ``%{name} --help`` lists its options."
        return as_magic(name, functools.partial(self._run, name), text)

    def _run(self, name: str, line: str) -> Any:
        """Run a command; the default job is the newest one of this kernel."""
        arguments = [*shlex.split(COMMANDS[name]), *split_words(line)]
        if name == "dist_clusters":
            arguments = ["check" if argument == "--check" else argument for argument in arguments]
        if (
            name == "dist_cancel"
            and all(argument.startswith("-") for argument in arguments[1:])
            and not asks_help(arguments)
        ):
            arguments.append(self._session.job().id)
        with contextlib.suppress(SystemExit):  # the help was printed
            return self._value(arguments)
        return None

    def _value(self, arguments: Sequence[str]) -> Any:
        """Return the object to display, None if the command has printed its output."""
        from distdl_jupyter.cli import command, command_line

        parser = command_line()
        args = parser.parse_args(arguments)
        if not hasattr(args, "run"):
            parser.print_help()
            return None
        if getattr(args, "id", "") is None:
            args.id = self._session.newest or None
        if args.command == "check" and getattr(args, "script", "") is None:
            args.script = self._session.job().id
        reply = command.reply_of(args)
        shows_itself = any(hasattr(reply.value, name) for name in _DISPLAYS)
        as_text = reply.value is None or (reply.text is not None and not shows_itself)
        if as_text or getattr(args, "json", False) or getattr(args, "csv", False):
            command.print_reply(reply, args)
            return None
        for note in reply.notes:
            say(note)
        return reply.value

    def _config(self, line: str) -> Any:
        args = config_parser().parse(line)
        topic, *settings = args.settings or [""]
        if topic == "warm":
            flags = [f"--{setting.replace('_', '-')}" if "=" in setting else setting for setting in settings]
            return self._run("distdl", shlex.join(["warm", *flags]))
        if topic in TOPICS:
            where = {"paged": hasattr(self._session.ip, "kernel")} if topic == "azure" else {}
            return TOPICS[topic](pairs(settings), **where)
        if args.clear:
            self._session.defaults.clear()
        changes = {name.replace("-", "_"): value for name, value in pairs(args.settings).items()}
        self._session.defaults = configured(self._session.defaults, changes)
        say(_settings(self._session.defaults))
        return None


def config_parser() -> Parser:
    """Return the parser of ``%dist_config``."""
    parser = Parser("%dist_config", _CONFIG, usage=" [azure|monitoring|tracking|warm] [NAME=VALUE ...]")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="Options, under any of their names.")
    parser.add_argument("--clear", action="store_true", help="Remove all defaults first.")
    return parser


def configured(defaults: dict[str, Any], changes: dict[str, str]) -> dict[str, Any]:
    """Return the defaults with checked changes; an empty value removes a default. Raises InvalidSpec."""
    values = {name: value_of(text) for name, text in changes.items() if text}
    removed = jobspec.resolved(dict.fromkeys(changes.keys() - values.keys()))
    if isinstance(env := values.pop("env", values.pop("environment_variables", None)), str):
        values["environment_variables"] = {**defaults.get("environment_variables", {}), **pairs_of(env.split(","))}
    result = {**defaults, **jobspec.resolved(values)}
    result = {name: value for name, value in result.items() if name not in removed}
    checked(result)
    if label := result.get("distributed_backend"):
        registry.backend(str(label), {})
    if target := result.get("compute_target"):
        cluster_configs.find(str(target))
    return result


def _settings(defaults: dict[str, Any]) -> str:
    if not defaults:
        return "No defaults are set. Example: %dist_config process_count_per_node=2"
    return "\n".join(f"{name} = {_shown(value)}" for name, value in sorted(defaults.items()))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={'•••' if is_secret(k, str(v)) else v}" for k, v in value.items())
    return str(value)
