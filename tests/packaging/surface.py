"""The public surface of the package as text: names, options, flags, HTTP addresses, entry points, requirements.

``python -m tests.packaging.surface`` rewrites ``surface.txt``, which ``test_surface.py`` compares with the code.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distdl_jupyter
from distdl_jupyter import cli, testing
from distdl_jupyter.api import openapi
from distdl_jupyter.cli import scripts
from distdl_jupyter.core import registry
from distdl_jupyter.form.arguments import Parser, add_all_flags, add_job_flags, make_cell_parser, make_sweep_parser
from distdl_jupyter.magic import commands as line_magics
from distdl_jupyter.magic import ranks_magic
from distdl_jupyter.magic.session import Session

FILE = Path(__file__).with_name("surface.txt")
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: The modules of ``compat``, but for ``horovod.check_keras``: importing it imports Keras, which takes seconds.
COMPAT = ("azureml", "batchai", "horovod", "horovod.spark", "pyspark")
#: Public calls, and the class of the object that they return.
RESULTS = {
    "Job.checkpoints()": "views.job_page:CheckpointList",
    "Job.environment()": "core.spec:JobEnvironment",
    "Job.profile()": "views.steps:ProfileDisplay",
    "Job.resources()": "views.resources:ResourceTable",
    "Job.stacks()": "views.stacks:StacksDisplay",
    "Job.time()": "views.steps:StepTimesDisplay",
    "check()": "core.correctness:Comparison",
    "clusters()": "clusters.handle:ClusterList",
    "clusters()[name]": "clusters.handle:ClusterHandle",
    "jobs()": "jobs.client:Jobs",
    "notifications()": "tracking.messages:Notifications",
    "prune()": "jobs.retention:PruneResult",
    "queue()": "jobs.job_queue:Queue",
    "scale()": "studies.scaling:ScalingStudy",
    "shard()": "worker.data:Shard",
    "sweep()": "studies.sweeps:Sweep",
    "sweep().best": "studies.sweep_study:SweepTrial",
}
#: Extras for work on the package itself.
DEVELOPMENT = {"demo", "docs", "test"}


def text() -> str:
    """Return the whole surface: sections of sorted lines."""
    paths = openapi.create_document()["paths"]
    sections = {
        "Names of distdl_jupyter": names(distdl_jupyter),
        "Names of distdl_jupyter.compat": [line for name in COMPAT for line in names(load(f"compat.{name}"))],
        "Names of distdl_jupyter.testing": testing.__all__,
        "What calls return": results(),
        "Backends, clusters and their options": plugins(),
        "Flags of many commands and magics": [f"{group} {flag}" for group in groups() for flag in groups()[group]],
        "Commands": commands(cli.make_parser(), "distdl"),
        "Magics": [line for name, parser in magics().items() for line in commands(parser, name)],
        "Magics that run a command": [f"%{name}: {words}" for name, words in line_magics.COMMANDS.items() if words],
        "HTTP": [f"{path} {verb.upper()}" for path, verbs in paths.items() for verb in verbs if verb != "parameters"],
        "Entry points": entry_points(),
        "Requirements": requirements(),
    }
    return "\n".join("\n".join([f"# {title}", *sorted(set(lines)), ""]) for title, lines in sections.items())


def load(path: str) -> Any:
    """Return a module of the package, or a name in a module."""
    return pkgutil.resolve_name(f"distdl_jupyter.{path}")


def names(module: Any) -> Iterator[str]:
    """Yield the public names of a module with their signatures, and the members of its classes."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    for name in getattr(module, "__all__", [name for name in defined if not name.startswith("_")]):
        value = getattr(module, name)
        path = re.sub(r"^distdl_jupyter\.(compat\.)?", "", f"{module.__name__}.{name}")
        yield path + (signature(value) if callable(value) else "")
        if inspect.isclass(value):
            yield from members(path, value)


def results() -> Iterator[str]:
    """Yield the fields and other members of what public calls return."""
    for call, path in RESULTS.items():
        owner = load(path)
        fields = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
        yield from (*members(call, owner), *(f"{call}.{field.name}" for field in fields))


def members(path: str, owner: type) -> Iterator[str]:
    """Yield the public methods and properties of a class, also those of its bases in this package."""
    bases = (base for base in owner.__mro__ if base.__module__.startswith("distdl_jupyter."))
    for name, value in ((name, value) for base in bases for name, value in vars(base).items() if name[0] != "_"):
        if isinstance(value, property | functools.cached_property):
            yield f"{path}.{name}"
        elif inspect.isroutine(value):
            yield f"{path}.{name}{signature(getattr(owner, name))}"


def signature(function: Any) -> str:
    """Return the parameters with their defaults, without annotations: their text differs between Python versions."""
    whole = inspect.signature(function)
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in whole.parameters.values()]
    return re.sub(r" at 0x\w+", "", str(whole.replace(parameters=parameters, return_annotation=whole.empty)))


def plugins() -> Iterator[str]:
    """Yield the clusters and backends of this package, the other names of backends, and all options."""
    for kind in registry.KINDS:
        for name in PROJECT["entry-points"][f"distdl_jupyter.{kind}"]:
            plugin = f"{kind[:-1]} {name}"
            labels = getattr(registry.get(kind, name), "labels", {})
            options = (field.name for field in registry.get_options(kind, name) if not field.name.startswith("_"))
            yield from (plugin, *(f"{plugin}: {option}" for option in options), *(f"backend {name}" for name in labels))


def flags(parser: argparse.ArgumentParser) -> list[str]:
    """Return the flags and arguments of a parser, also those that the help does not list."""
    if isinstance(parser, Parser):
        parser.add_deferred_flags()
    left_out = (argparse._HelpAction, argparse._SubParsersAction)
    return [_flag(action) for action in parser._actions if not isinstance(action, left_out)]


def _flag(action: argparse.Action) -> str:
    parts = [", ".join(action.option_strings) or f"<{action.dest}>"]
    if action.choices:
        parts.append(f"{{{'|'.join(map(str, action.choices))}}}")
    elif action.option_strings and action.nargs != 0:
        parts.append("VALUE")
    if action.nargs not in (None, 0):
        parts.append("(optional)" if action.nargs == "?" else "(several)")
    if action.default not in (None, argparse.SUPPRESS, False, [], ""):
        parts.append(f"(default {action.default})")
    return " ".join(parts)


@functools.cache
def groups() -> dict[str, list[str]]:
    """Return the flags that many commands and magics have, by the name of the group."""
    job, other = Parser(add_help=False), Parser(add_help=False)
    add_job_flags(job)
    scripts.add_other_flags(other)
    plugin = [flag for flag in flags(add_all_flags(Parser(add_help=False))) if flag not in flags(job)]
    return {"[job]": flags(job), "[other launchers]": flags(other), "[plug-ins]": plugin}


def with_flags(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the name of a command or magic, and the name with each flag, or with a whole group of flags."""
    rest = flags(parser)
    for group, shared in groups().items():
        if set(shared) <= set(rest):
            rest = [group, *(flag for flag in rest if flag not in shared)]
    yield from (name, *(f"{name} {flag}" for flag in rest))


def commands(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    """Yield a command with its flags, and all its subcommands."""
    yield from with_flags(name, parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subcommand, subparser in action.choices.items():
                yield from commands(subparser, f"{name} {subcommand}")


def magics() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each magic, and of each action of a magic; one that runs a command has an empty parser."""
    parsers: dict[str, argparse.ArgumentParser] = {f"%{name}": Parser() for name in line_magics.COMMANDS}
    parsers["%dist_config"] = line_magics.make_config_parser()
    parsers |= {f"%dist_config {topic}": Parser() for topic in (*line_magics.TOPICS, "warm")}
    parsers["%dist_ranks"] = ranks_magic.RanksMagics(Session(None)).make_parser()
    parsers |= {f"%%{name}": make_cell_parser(name) for name in ("distributed", "distdl")}
    return parsers | {"%%ranks": ranks_magic.make_cell_parser(), "%%sweep": make_sweep_parser()}


def entry_points() -> Iterator[str]:
    """Yield the entry points of the package, by group."""
    for group, points in {"console_scripts": PROJECT["scripts"], **PROJECT["entry-points"]}.items():
        yield from (f"{group}: {name}" for name in points)


def requirements() -> Iterator[str]:
    """Yield what the package and its extras require."""
    yield from (f"python{PROJECT['requires-python']}", *PROJECT["dependencies"])
    for extra, packages in PROJECT["optional-dependencies"].items():
        yield from (f"[{extra}] {package}" for package in packages if extra not in DEVELOPMENT)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
