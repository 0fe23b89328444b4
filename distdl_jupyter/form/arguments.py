"""The flags of the magics, which also define the text of ``%%distributed?``.

This module defines the flags of every job; the flags of backends and clusters come from their ``Options``. Option names
of other tools are accepted as flags too, but not listed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import functools
import inspect
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import InvalidSpec, PluginUnavailable
from distdl_jupyter.core.options import (
    ALIASES,
    OPTIONS,
    OTHER_FLAGS,
    TOTAL_NAMES,
    describe_unknown,
    list_flags,
    override,
)
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.form.schema import OptionField, OptionKind
from distdl_jupyter.jobs import jobspec

#: Placeholder for the names of all backends in a help text; the backends are loaded only to print the help.
_BACKENDS_PLACEHOLDER = "the backends"
#: An option as a keyword argument of a call.
_OPTION = re.compile(r"\b([a-z]+(?:_[a-z]+)*)=([\w.-]*\w)")
#: Flags of a sweep besides its parameters and the options of its trials: type, metavar and help.
SWEEP_FLAGS: dict[str, tuple[type, str, str]] = {
    "trials": (int, "N", "Number of trials (default 20; the grid sampler runs all combinations)."),
    "metric": (str, "NAME", "Metric to compare trials by (default loss)."),
    "maximize": (bool, "", "Whether a higher value is better (default: from its name)."),
    "parallel": (int, "N", "Trials that run at the same time (default 1)."),
    "sampler": (str, "NAME", "tpe (default), random, grid, qmc or gp."),
    "pruner": (str, "NAME", "How bad trials are stopped early: median (default), halving, hyperband or none."),
    "prune_after": (int, "STEP", "First step at which a trial may be stopped (default 1)."),
    "seed": (int, "N", "Make the sampled values reproducible."),
}
#: Names of parsed arguments that are not options of a job: flags of the magics, and the command with its function.
_NOT_OPTIONS = {*SWEEP_FLAGS, "out", "wait", "panel", "on_ranks", "check", "scale", "run", "command"}

_DESCRIPTION = (
    "\nRun this cell on every rank of a distributed job.\n\nThe cell returns immediately and shows the job live: "
    "state, curves, log. The job runs outside the kernel, so it survives a\nkernel restart or a page reload. Variables "
    "that the cell uses are sent with it by value, and so are modules in the\nnotebook's folder. The value of the "
    "last expression is the result of the job.\n"
)

_EPILOG = """
Inside the cell, report with ``from distdl_jupyter import log, progress``.

Examples:

    %%distributed -p 2 -b horovod-gloo --name digits -o job
    %%distributed -N 2 -p 4 -b torch --wait

Then ``job.result()`` is the value of rank 0 and ``job.results()`` the list by rank.
"""


_SWEEP_DESCRIPTION = (
    "\nRun this cell many times as jobs with different values of some variables, and find the best values.\n\nStart "
    "the line with the variables to vary: NAME=VALUES, such as lr=loguniform(1e-4,1e-1), depth=integers(1,8),\n"
    "dropout=uniform(0,0.5), width=64,128. The cell uses these variables but does not assign them. It returns "
    "immediately and\nshows the sweep, which continues without the kernel.\n"
)
_SWEEP_EPILOG = (
    "\nInside the cell, report the metric to compare: ``from distdl_jupyter import log; log(step=epoch, "
    "loss=loss)``.\n\nExample:\n\n    %%sweep lr=loguniform(1e-4,1e-1) width=64,128 --trials 20 --metric loss "
    "--parallel 2 -o study\n\nThen ``study.best.params`` are the best values and "
    "``study.best.run(process_count_per_node=4)`` runs with them.\n"
)


class Parser(argparse.ArgumentParser):
    """A parser that raises InvalidSpec, with the nearest names for an unknown option or command.

    ``deferred`` is a function that adds more flags. It is called if a line has an unknown flag, and for the help.
    """

    deferred: Callable[[Parser], None] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments. Raises InvalidSpec for an unknown argument."""
        parsed, rest = super().parse_known_args(args, namespace)
        if rest and self.add_deferred_flags():
            return self.parse_known_args(args, namespace)
        if flag := next((argument for argument in rest if argument.startswith("-")), ""):
            self._fail(self._describe_unknown_flag(flag))
        if rest:
            location, example = (" on the magic line", ", such as -p 2") if self.prog.startswith("%%") else ("", "")
            text = f"Unexpected argument {rest[0]!r}{location}. Every value must follow an option{example}."
            self._fail(text)
        return parsed, rest

    def parse(self, line: str) -> argparse.Namespace:
        """Return the arguments of a magic line. Raises InvalidSpec."""
        return self.parse_args(split_line(line))

    def add_deferred_flags(self) -> bool:
        """Add the deferred flags; return whether there were any."""
        add, self.deferred = self.deferred, None
        if add is not None:
            add(self)
        return add is not None

    def format_help(self) -> str:
        """Return the help with all flags."""
        self.add_deferred_flags()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise InvalidSpec."""
        text = f"{message[:1].upper()}{message[1:]}."
        raise InvalidSpec(text, code="flag-invalid", field="flag", hint=self._get_help_hint("options"))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action.choices, dict) and value not in action.choices:
            self._fail(describe_unknown(value, action.choices, "command"), "commands")
        super()._check_value(action, value)

    def _fail(self, text: str, items: str = "options") -> NoReturn:
        raise InvalidSpec(text, code="flag-stray", field="flag", hint=self._get_help_hint(items))

    def _get_help_hint(self, items: str) -> str:
        return f"List all {items} with{f' {self.prog}?' if self.prog.startswith('%%') else f': {self.prog} --help'}"

    def _describe_unknown_flag(self, text: str) -> str:
        actions = [action for action in self._actions if action.option_strings]
        names = {
            action.dest: max(action.option_strings, key=lambda flag: flag.startswith("--"))
            for action in actions
            if action.help is not argparse.SUPPRESS and action.dest != "help"
        }
        aliases: dict[str, str] = {}
        for action in actions:
            primary = "process_count_per_node" if action.dest in TOTAL_NAMES else ALIASES.get(action.dest, action.dest)
            if primary in names:
                aliases |= dict.fromkeys(action.option_strings, names[primary])
        return describe_unknown(text.partition("=")[0], names.values(), "option", aliases=aliases)


def make_magic_parser(magic: str, description: str, *, epilog: str = "", usage: str = "") -> Parser:
    """Return the parser of a magic; ``magic`` is its name with % or %%."""
    return Parser(
        prog=magic,
        usage=f"{magic} [flags]{usage}".replace("%", "%%"),
        description=inspect.cleandoc(description),
        epilog=inspect.cleandoc(epilog),
        formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=36, width=110),
        add_help=False,
        allow_abbrev=False,
    )


def split_line(line: str) -> list[str]:
    """Return the arguments of a magic line. Raises InvalidSpec."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise InvalidSpec(
            f"Cannot parse the magic line: {error}.", code="magic-line-unreadable", hint="Close every quote."
        ) from None


def make_cell_parser(name: str = "distributed") -> Parser:
    """Return the parser of the cell magic."""
    parser = add_all_flags(make_magic_parser(f"%%{name}", _DESCRIPTION, epilog=_EPILOG))
    add = parser.add_argument
    add("-o", "--out", metavar="NAME", help="Store the Job in this variable.")
    add(
        "--wait",
        action=argparse.BooleanOptionalAction,
        help="Wait for the end: a failure is raised in the notebook, and an interrupt cancels the job (default: only "
        "when a program such as papermill runs the notebook).",
    )
    add("--panel", action=argparse.BooleanOptionalAction, help="Show the live panel (default) or a line of text.")
    add(
        "--scale",
        metavar="1,2,4",
        help="Compare short runs with these process counts instead of starting a job; -b a,b compares backends.",
    )
    add(
        "--check",
        action="store_true",
        help="Check the code with short runs, on several ranks and on one process, instead of starting a job.",
    )
    add("--on-ranks", action="store_true", help="Run the cell on the ranks of %%dist_ranks and wait for it to finish.")
    return parser


def make_sweep_parser() -> Parser:
    """Return the parser of the flags of ``%%sweep``, which follow the parameters."""
    parser = add_all_flags(make_magic_parser("%%sweep", _SWEEP_DESCRIPTION, epilog=_SWEEP_EPILOG))
    add_sweep_flags(parser)
    parser.add_argument("-o", "--out", metavar="NAME", help="Store the Sweep in this variable.")
    text = "Wait for the end (default: only when a program such as papermill runs the notebook)."
    parser.add_argument("--wait", action=argparse.BooleanOptionalAction, help=text)
    return parser


def add_all_flags(parser: Parser) -> Parser:
    """Add the flags of every job and plug-in to the parser of a magic, and return the parser.

    The flags of plug-ins are added on demand, because they require loading all plug-ins and few lines use one.
    """
    parser.argument_default, parser.allow_abbrev = argparse.SUPPRESS, False
    add_job_flags(parser)
    parser.deferred = _add_plugin_flags
    return parser


def _insert_backend_names(parser: Parser) -> None:
    flag = next(action for action in parser._actions if action.dest == "distributed_backend")  # noqa: SLF001
    flag.help = str(flag.help).replace(_BACKENDS_PLACEHOLDER, ", ".join(registry.map_labels()))


def _add_plugin_flags(parser: Parser) -> None:
    _insert_backend_names(parser)
    names = {action.dest for action in parser._actions}  # noqa: SLF001 - argparse has no public list
    for kind in registry.KINDS:
        for name in registry.list_names(kind):
            with contextlib.suppress(PluginUnavailable):
                group = parser.add_argument_group(f"{kind[:-1]} {name}")
                for field in registry.get_options(kind, name):
                    if field.name not in names:
                        names.add(field.name)
                        add_option(group, field)
    for flag, alias in OTHER_FLAGS.items():
        if alias not in names:
            parser.add_argument(flag, dest=alias, type=parse_value, help=argparse.SUPPRESS)


def add_job_flags(parser: Parser, *, default_text: str = "") -> None:
    """Add the flags of every job. ``default_text`` replaces the descriptions of all defaults."""
    names = {"clusters": ", ".join(registry.list_names("clusters")), "backends": _BACKENDS_PLACEHOLDER}
    for name, option in OPTIONS.items():
        default = default_text or option.default_text
        suffix = f" (default{':' if ' ' in default else ''} {default})" if default else ""
        kwargs: dict[str, Any] = {"metavar": option.metavar}
        if option.is_repeatable:
            kwargs["action"] = "append"
        elif option.is_switch:
            kwargs = {"action": argparse.BooleanOptionalAction}
        else:
            kwargs["type"] = _parse_count if name == "process_count_per_node" else option.value_type
        text = f"{option.help.format_map(names)}{suffix}."
        parser.add_argument(*list_flags(name), dest=name, default=argparse.SUPPRESS, help=text, **kwargs)
    parser.deferred = _insert_backend_names


def add_sweep_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a sweep."""
    for name, (type_, metavar, text) in SWEEP_FLAGS.items():
        kwargs = {"action": argparse.BooleanOptionalAction} if type_ is bool else {"type": type_, "metavar": metavar}
        parser.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, help=text, **kwargs)


def describe_option(field: dataclasses.Field[Any]) -> OptionField:
    """Return the description of an option that a plug-in declares."""
    default = None if field.default is dataclasses.MISSING else field.default
    choices = tuple(map(str, field.metadata.get("choices") or ()))
    is_flag = isinstance(default, bool) or "bool" in str(field.type)
    is_number = re.search("int|float", str(field.type))
    kind: OptionKind = "choice" if choices else "flag" if is_flag else "number" if is_number else "text"
    return OptionField(field.name, "", field.metadata.get("help", ""), kind, default, choices)


def add_option(group: argparse._ActionsContainer, field: dataclasses.Field[Any]) -> None:
    """Add the flag of one field of a plug-in's ``Options``."""
    option = describe_option(field)
    text = option.help.rstrip(".").replace("%", "%%")
    is_explained = option.default in (None, "") or "(default" in text
    text = f"{text[:1].upper()}{text[1:]}{'' if is_explained else f' (default {option.default})'}."
    kwargs: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
    if option.kind != "flag":
        metavar = "|".join(option.choices) or ("N" if option.kind == "number" else "VALUE")
        value_type = type(option.default) if isinstance(option.default, int | float | str) else parse_value
        kwargs = {"type": value_type, "metavar": metavar}
    group.add_argument(f"--{option.name.replace('_', '-')}", dest=option.name, help=text, **kwargs)


def _parse_count(text: str) -> int | str:
    if text != "auto" and not text.lstrip("-").isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer or auto, not {text!r}")
    return text if text == "auto" else int(text)


def parse_value(text: str) -> Any:
    """Parse an argument of a magic line as a number, True, False, None, or the text itself."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, int | float | str | bool | type(None)) else text


def to_flags(text: str) -> str:
    """Return a message with the options of a call (``use_gpu=False``) as flags (``--no-use-gpu``)."""

    def to_flag(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in OPTIONS and not any(name in jobspec.list_option_names(kind) for kind in registry.KINDS):
            return match[0]
        flag = name.replace("_", "-")
        return {"True": f"--{flag}", "False": f"--no-{flag}"}.get(value, f"--{flag} {value}")

    return _OPTION.sub(to_flag, text)


def get_job_options(
    args: argparse.Namespace, defaults: Mapping[str, Any], get_value: Callable[[str], str | None] = os.environ.get
) -> dict[str, Any]:
    """Return the options of a job under their primary names; flags override the ``defaults`` of this kernel.

    ``get_value`` returns the value of a variable for ``--env NAME``.
    """
    options = {name: option for name, option in vars(args).items() if name not in _NOT_OPTIONS}
    if "environment_variables" in options:
        variables = parse_env(options["environment_variables"], get_value)
        options["environment_variables"] = {**(defaults.get("environment_variables") or {}), **variables}
    return jobspec.resolve_options(override(defaults, options))


def parse_pairs(assignments: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE texts as a dict. Raises InvalidSpec."""
    for text in assignments:
        if "=" not in text:
            raise InvalidSpec(
                f"{text!r} is not an assignment. Write NAME=VALUE.", code="setting-without-value", field=text
            )
    return dict(text.split("=", 1) for text in assignments)


def parse_env(assignments: list[str], get_value: Callable[[str], str | None] = os.environ.get) -> dict[str, str]:
    """Return NAME=VALUE texts as a dict; ``get_value`` returns the value for a NAME alone. Raises InvalidSpec."""
    variables = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        value = text if equals else get_value(name)
        if not name or value is None:
            raise InvalidSpec(
                "--env must be NAME=VALUE, or the NAME of a variable that is set in this kernel's environment.",
                code="env-flag-invalid",
                field="environment_variables",
                hint="Write it as --env OMP_NUM_THREADS=2.",
            )
        variables[name] = value
    return variables


def mask_secrets(line: str) -> str:
    """Return a magic line with the values of environment variables masked if they look like secrets."""

    def mask(argument: str) -> str:
        flag = "--env=" if argument.startswith("--env=") else ""
        name, equals, value = argument.removeprefix(flag).partition("=")
        return f"{flag}{name}=•••" if equals and is_secret(name, value) else argument

    return " ".join(shlex.quote(mask(argument)) for argument in shlex.split(line))
