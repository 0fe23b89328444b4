"""``%distdl`` runs a command of the command line in this notebook, and ``%dist_config`` sets the kernel's defaults.

The other line magics are short names of commands: ``%dist_logs -f k3f9`` is ``%distdl logs -f k3f9``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry
from distdl_jupyter.core.aliases import resolve
from distdl_jupyter.core.options import ABOUT, check_count
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.form.arguments import Parser, allowed, asks_help, pairs, pairs_of, split_words, value_of
from distdl_jupyter.magic.session import Session, as_magic, identifier, say
from distdl_jupyter.magic.topics import TOPICS

#: The words of ``distdl`` for which each line magic is a short name.
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
#: Methods of objects that a notebook shows as more than their repr.
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
        """Run a command; the job is the newest one of this kernel where the line names none."""
        words, variable = _without_variable(name, [*shlex.split(COMMANDS[name]), *split_words(line)])
        if name == "dist_clusters":
            words = ["check" if word == "--check" else word for word in words]
        if name == "dist_cancel" and all(word.startswith("-") for word in words[1:]) and not asks_help(words):
            words.append(self._session.job().id)
        with contextlib.suppress(SystemExit):  # the help was printed
            value = self._value(words)
            if variable is None:
                return value
            self._session.keep(variable, value)
        return None

    def _value(self, words: Sequence[str]) -> Any:
        """Return what a command shows, None when it has printed it."""
        from distdl_jupyter.cli import command, command_line

        parser = command_line()
        chosen = parser.parse_args(words)
        if not hasattr(chosen, "run"):
            parser.print_help()
            return None
        if getattr(chosen, "id", "") is None:
            chosen.id = self._session.newest or None
        if chosen.command == "check" and getattr(chosen, "script", "") is None:
            chosen.script = self._session.job().id
        reply = command.reply_of(chosen)
        shows_itself = any(hasattr(reply.value, name) for name in _DISPLAYS)
        as_text = reply.value is None or (reply.text is not None and not shows_itself)
        if as_text or getattr(chosen, "json", False) or getattr(chosen, "csv", False):
            command.print_reply(reply, chosen)
            return None
        for note in reply.notes:
            say(note)
        return reply.value

    def _config(self, line: str) -> Any:
        chosen = config_parser().parse(line)
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


def _without_variable(name: str, words: list[str]) -> tuple[list[str], str | None]:
    """Return the words without ``-o NAME`` of ``%dist_attach``, and the name."""
    if name != "dist_attach":
        return words, None
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-o", "--out")
    chosen, rest = parser.parse_known_args(words)
    return rest, identifier(chosen.out)


def config_parser() -> Parser:
    """Return the parser of ``%dist_config``."""
    parser = Parser("%dist_config", _CONFIG, usage=" [azure|monitoring|tracking|warm] [NAME=VALUE ...]")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="Options, under any of their names.")
    parser.add_argument("--clear", action="store_true", help="Remove all defaults first.")
    return parser


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
