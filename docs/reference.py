"""Generates the reference pages from the code: option metadata, docstrings, parsers, schemas, errors.

``write(folder)`` writes them before Sphinx reads its sources.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from http.client import responses
from pathlib import Path
from typing import Any

import codes
from IPython.core.interactiveshell import InteractiveShell

import distdl_jupyter
from distdl_jupyter import cli
from distdl_jupyter.api import openapi
from distdl_jupyter.clusters.slurm.commands import REFUSAL_REMEDIES
from distdl_jupyter.clusters.ssh import CAUSES
from distdl_jupyter.core import collectives, correctness, failure, files, machine, registry
from distdl_jupyter.core.options import DEFAULTS, OPTIONS, list_flags
from distdl_jupyter.magic import load
from distdl_jupyter.server.app import DistDLApp
from distdl_jupyter.server.handler import HINTS, STATUS_CODES, to_api_error
from distdl_jupyter.supervisor import postmortem
from distdl_jupyter.worker import failure as worker_failure

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "distdl_jupyter"
ERRORS = codes.error_classes()
#: Environment variables that a user may set.
VARIABLES = {
    "DISTDL_DOCS": "the address of a copy of this site (`https://...`): messages in JupyterLab and in panels then link "
    "to their entry in [Troubleshooting](troubleshooting.md)",
    "DISTDL_HOME": "the data directory, where jobs are stored (default: `distdl` in Jupyter's data directory)",
    "DISTDL_CACHE": "the cache directory: built wheels, environments, data (default: `~/.cache/distdl`)",
    "DISTDL_DATA_CACHE_BYTES": "the maximum size of downloaded data (default: a tenth of the disk, at most `100GB`)",
    "DISTDL_QUEUE": "the folder of this machine's queue, for containers that share its GPUs",
    "DISTDL_STALL_SECONDS": "seconds without progress after which stacks are captured; `0`: never. Set it in the "
    "environment of the process that submits the job ([When training hangs](../howto/hangs.md))",
    "DISTDL_WARM": "`off` switches warm starts off",
}
#: Environment variables that ranks have.
RANK_VARIABLES = ("DISTDL_RANK", "DISTDL_WORLD_SIZE", "DISTDL_LOCAL_RANK", "DISTDL_LOCAL_SIZE", "DISTDL_NODE_RANK",
                  "DISTDL_NODE_COUNT", "DISTDL_JOB_ID", "DISTDL_JOB_DIR", "DISTDL_RESTART_COUNT")  # fmt: skip
#: The subject of the messages of each folder or module; the rest is "Jobs".
SUBJECTS = {
    "azure": "Azure: sign-in, sizes and prices",
    "backends": "Backends",
    "backends/base": "Checks before the start",
    "preflight": "Checks before the start",
    "clusters/azureml": "Azure ML",
    "clusters/ray": "Ray",
    "clusters/slurm": "Slurm",
    "clusters/spark": "Spark",
    "clusters/ssh": "SSH hosts",
    "clusters": "Clusters",
    "clusters/cluster_configs": "Clusters",
    "environment": "Installing",
    "core/failure": "A rank that failed",
    "worker": "A rank that failed",
    "core/data": "Data",
    "data": "Data",
    "node": "Nodes",
    "core/options": "Options",
    "core/aliases": "Options",
    "form": "Options",
    "magic": "Options",
    "ranks": "Persistent ranks",
    "capture": "Variables sent with a cell",
    "compat": "Code for other launchers",
    "studies/sweeps": "Sweeps",
    "core/space": "Sweeps",
    "studies/sweep_driver": "Sweeps",
    "studies/sweep_study": "Sweeps",
    "server": "The HTTP API",
}


def write(folder: Path) -> None:
    """Write all pages into ``folder``; an unchanged page keeps its modification time."""
    folder.mkdir(exist_ok=True)
    pages = {
        "options.md": options(),
        "plugins.md": plugins(),
        "python.md": python(),
        "command-line.md": command_line(),
        "magics.md": magics(),
        "http.md": http(),
        "openapi.json": json.dumps(openapi.create_document(), indent=1),
        "settings.md": settings(),
        "troubleshooting.md": troubleshooting(),
    }
    for name, text in pages.items():
        page = folder / name
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


# options ------------------------------------------------------------------------------------------


def options() -> str:
    """Return the page of the options that every job accepts."""
    parts = [
        "# Job options",
        "Every job accepts these, as arguments of `submit()`, flags of `%%distributed` and of `distdl submit`, fields "
        "of the form and settings of `%dist_config`. The option names of other tools are accepted too.",
    ]
    names = {
        "clusters": ", ".join(registry.list_names("clusters")),
        "backends": ", ".join(registry.map_labels()),
    }
    for name, about in OPTIONS.items():
        default = about.default_text or _default(DEFAULTS[name])
        facts = [f"Flag: {', '.join(f'`{flag}`' for flag in list_flags(name))}"]
        facts += [f"default: {default}"] if default else []
        facts += [f"also: {', '.join(f'`{alias}`' for alias in about.aliases)}"] if about.aliases else []
        help_ = about.help.format_map(names)
        parts += [f"({anchor('option ' + name)})=", f"## `{name}`", f"{_text(help_)}.", f"{'; '.join(facts)}."]
    return "\n\n".join(parts) + "\n"


def plugins() -> str:
    """Return the page of the options of clusters and backends."""
    parts = [
        "# Options of clusters and backends",
        'Arguments of `add_cluster("name", "kind", option=...)` and `submit(...)`, or flags; `-o NAME=VALUE` in a '
        "terminal.",
    ]
    for kind in ("clusters", "backends"):
        for name in registry.list_names(kind):
            fields = [option for option in registry.get_options(kind, name) if not option.name.startswith("_")]
            parts += [f"({anchor(f'{kind[:-1]} {name}')})=", f"## {kind[:-1].capitalize()} `{name}`"]
            rows = [
                (f"`{option.name}`", _text(option.metadata.get("help", "")), _default(_made(option)))
                for option in fields
            ]
            parts.append(_table(("option", "description", "default"), rows) if rows else "No options.")
    return "\n\n".join(parts) + "\n"


def _made(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def _default(value: Any) -> str:
    return "" if value is None or value in ("", (), {}) else f"`{value}`"


# Python -------------------------------------------------------------------------------------------


def python() -> str:
    """Return the page of the public names."""
    parts = ["# Python", "`from distdl_jupyter import ...`. The other names of the package are not public."]
    for name in distdl_jupyter.__all__:
        if name.startswith("_"):
            continue
        value = getattr(distdl_jupyter, name)
        if inspect.ismodule(value):
            value = getattr(value, "__call__", value)  # noqa: B004 - a module that can be called
        parts += [f"({anchor('python ' + name)})=", f"## `{name}`", *_described(name, value)]
        if inspect.isclass(value) and not issubclass(value, Exception):
            for member, what in sorted(vars(value).items()):
                what = getattr(what, "fget", what)  # noqa: PLW2901 - a property's function
                if not member.startswith("_") and inspect.isfunction(what) and what.__doc__:
                    parts += [f"### `{name}.{member}`", *_described(f"{name}.{member}", what)]
    return "\n\n".join(parts) + "\n"


def _described(name: str, described: Any) -> Iterator[str]:
    if callable(described) and not (inspect.isclass(described) and issubclass(described, Exception)):
        signature = re.sub(r"distdl_jupyter\.[\w.]*\.", "", str(inspect.signature(described)))
        signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)  # annotations without quotes
        yield f"```text\n{name}{signature}\n```"
    yield _docstring(described)


def _docstring(documented: Any) -> str:
    """Return a docstring as Markdown: what is indented is literal."""
    lines: list[str] = []
    literal = False
    for line in inspect.cleandoc(documented.__doc__ or "").splitlines():
        if line.startswith("    ") != literal and line.strip():
            literal = not literal
            lines.append("```text" if literal else "```")
        lines.append(line[4:] if literal else _text(line))
    return "\n".join([*lines, "```"] if literal else lines)


# the command line, the magics ---------------------------------------------------------------------


def command_line() -> str:
    """Return the page of ``distdl``."""
    parser = cli.make_parser()
    parts = ["# Command line", "Exit codes: 0 done, 1 the job or check failed, 2 the request was rejected."]
    parts += _commands(parser, "distdl", 2)
    return "\n\n".join(parts) + "\n"


def _commands(parser: argparse.ArgumentParser, name: str, level: int) -> Iterator[str]:
    done: set[int] = set()
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        for subcommand, subparser in action.choices.items():
            if id(subparser) in done:  # an alias
                continue
            done.add(id(subparser))
            subparser.formatter_class = _wide
            command = f"{name} {subcommand}"
            yield f"({anchor(command)})="
            yield f"{'#' * level} `{command}`"
            yield f"```text\n{_narrow(subparser.format_help().rstrip())}\n```"
            yield from _commands(subparser, command, min(level + 1, 3))


def _wide(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=34, width=_WIDTH)


#: The columns of a code block, as wide as a page has room for beside its sidebars.
_WIDTH = 90
#: The left column of a help text: an option before its description, or only spaces.
_LEFT_COLUMN = re.compile(r"( +\S.*? {2,}| {12,})(?=\S)")


def _narrow(text: str) -> str:
    """Return a help text with its paragraphs and its columns of descriptions wrapped to the width of a page."""
    paragraphs: list[tuple[str, int]] = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        before, column = paragraphs[-1] if paragraphs else ("", 0)
        if line.strip() and before.strip() and indent == column and (indent or before[0] != " "):
            paragraphs[-1] = (f"{before} {line.strip()}", column)
        else:
            left = _LEFT_COLUMN.match(line)
            paragraphs.append((line, left.end() if left else 0))
    wrapped = (
        textwrap.wrap(line, _WIDTH, subsequent_indent=" " * column, break_on_hyphens=False, break_long_words=False)
        for line, column in paragraphs
    )
    return "\n".join("\n".join(lines) for lines in wrapped)


def magics() -> str:
    """Return the page of the magics that the extension adds to a shell."""
    shell = InteractiveShell()
    known = {kind: set(named) for kind, named in shell.magics_manager.magics.items()}
    load(shell)
    parts = [
        "# Magics",
        "`%load_ext distdl_jupyter` loads them. `%%distributed?` shows the same in a notebook. "
        "`%distdl COMMAND` runs a command of the [command line](command-line.md) and returns its object.",
    ]
    for kind, signs in (("cell", "%%"), ("line", "%")):
        for name, function in sorted(shell.magics_manager.magics[kind].items()):
            if name not in known[kind] and name != "distdl" and function.__doc__:  # an alias
                text = inspect.cleandoc(getattr(function, "getdoc", lambda doc=function.__doc__: doc)()).rstrip()
                text = _narrow(text)
                parts += [f"({anchor(f'magic {kind} {name}')})=", f"## `{signs}{name}`", f"```text\n{text}\n```"]
    return "\n\n".join(parts) + "\n"


# HTTP, settings -----------------------------------------------------------------------------------


def http() -> str:
    """Return the page of the HTTP API."""
    parts = [
        "# HTTP",
        "`<server>/distdl/api/` of the Jupyter server: JSON, and one resumable WebSocket per page. Every request is "
        "authenticated and authorized by the Jupyter server. The complete description is in "
        "{download}`openapi.json`; `python -m distdl_jupyter.api.openapi` prints it, too. Every error has the body "
        "`ApiError`, and the status of its class: "
        + ", ".join(f"`{kind.__name__}` {status}" for kind, status in STATUS_CODES.items())
        + ". Other errors are 403 (no permission), 404 (unknown address), 413 (body too large), 426 (no WebSocket).",
    ]
    for path, methods in openapi.create_document()["paths"].items():
        parts += [f"## `{path}`"]
        rows = []
        for method, call in methods.items():
            if method == "parameters":
                continue
            body = _schema(call.get("requestBody", {}))
            good = next(
                (_schema(response) for status, response in call["responses"].items() if status.startswith("2")), ""
            )
            rows.append((f"`{method.upper()}`", _text(call.get("summary", "")), body, good))
        parts.append(_table(("method", "description", "request", "response"), rows))
    return "\n\n".join(parts) + "\n"


def _schema(part: dict[str, Any]) -> str:
    for content in part.get("content", {}).values():
        schema = content.get("schema", {})
        name = (schema.get("items") or schema).get("$ref", "").rpartition("/")[2]
        return f"{'list of ' if 'items' in schema else ''}`{name}`" if name else ""
    return ""


def settings() -> str:
    """Return the page of the settings of server and JupyterLab."""
    server = [
        (f"`c.DistDLApp.{name}`", _text(trait.help), f"`{trait.default_value!r}`")
        for name, trait in sorted(DistDLApp.class_own_traits(config=True).items())
    ]
    schema = json.loads((ROOT / "labextension" / "schema" / "plugin.json").read_text())
    lab = [
        (f"`{name}`", _text(f"{setting['title']}: {setting.get('description', '')}"), f"`{setting.get('default')}`")
        for name, setting in schema["properties"].items()
        if "title" in setting
    ]
    head = ("setting", "description", "default")
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    if unknown := [name for name in (*VARIABLES, *RANK_VARIABLES) if f'"{name}"' not in code]:
        raise ValueError(f"The package knows no variable {', '.join(unknown)}; change docs/reference.py.")
    variables = [(f"`{name}`", text) for name, text in VARIABLES.items()]
    return "\n\n".join([
        "# Settings",
        "## The Jupyter server", "In `jupyter_server_config.py`.", _table(head, server),
        "## JupyterLab", "Settings → Settings Editor → Distributed training.", _table(head, lab),
        "## Environment variables", _table(("variable", "description"), variables),
        f"Ranks have {', '.join(f'`{name}`' for name in RANK_VARIABLES)}, and the variables of torchrun.",
    ]) + "\n"  # fmt: skip


# messages and fixes -------------------------------------------------------------------------------


def troubleshooting() -> str:
    """Return the page of all error messages with their fixes; the code of a message is the anchor of its entry."""
    by_code: dict[str, list[codes.Entry]] = defaultdict(list)
    for entry in [*codes.entries(), *hints(), *unreachable(), *failures(), *statuses(), *tables()]:
        by_code[entry.code].append(entry)
    subjects: dict[str, list[str]] = defaultdict(list)
    for code, same in by_code.items():
        subjects[_subject(same[0].path.removesuffix(".py"))].append(code)
    parts = [
        "# Troubleshooting",
        "Every error message, with its fix; `…` stands for a name or a number. The address of an entry is the `code` "
        "of the error, check or finding (`error.code` in Python). Search this page for the text of your message, or "
        "set `DISTDL_DOCS` ([Settings](settings.md)) to get links from the messages to this page. See also "
        "[When a rank fails](../howto/failures.md) and [When training hangs](../howto/hangs.md).",
    ]
    about = {kind.code: inspect.getdoc(kind) or "" for kind in ERRORS}
    for subject in sorted(subjects):
        parts.append(f"## {subject}")
        for code in sorted(subjects[subject]):
            parts += [f"({code})=", f"### `{code}`"]
            parts += (
                [_text(about[code].partition("\n")[0].partition(";")[0].rstrip(".")) + "."] if code in about else []
            )
            parts += dict.fromkeys(_message(entry) for entry in by_code[code] if entry.message or entry.remedy)
    return "\n\n".join(parts) + "\n"


def _message(entry: codes.Entry) -> str:
    """Return a message in bold and its remedy, as Markdown."""
    message = " ".join(entry.message.split())
    return " ".join(filter(None, (message and f"**{_text(message)}**", _text(entry.remedy))))


def hints() -> Iterator[codes.Entry]:
    """Yield the hint of each rule for a rank's exception."""
    for code, _pattern, text in worker_failure.TEXT_RULES:
        yield codes.Entry(code, text, "", _RANKS, 0, explicit=True)
    from_text = {code for code, _pattern, _text in worker_failure.TEXT_RULES}
    for code, rule in worker_failure.RULES:
        if code in from_text:
            continue
        tree = ast.parse(inspect.getsource(rule))
        returned = (node.value for node in ast.walk(tree) if isinstance(node, ast.Return))
        texts = [text for text in map(codes.text_of, returned) if len(text.split()) > 3]
        for text in texts or [_RULE_TEXTS[code]]:
            yield codes.Entry(code, text, "", _RANKS, 0, explicit=True)


#: The rules whose hints are put together from the values at the failing line.
_RULE_TEXTS = {
    "data-loader-worker-failed": "It was raised in a worker process of the DataLoader: ….",
    "key-missing": "The line reads a key that the dict or DataFrame … does not have. The hint lists the keys that it "
    "has: use one of them, or add the missing key first.",
    "shapes-differ": "The shapes of two operands do not match. The hint shows both expressions with their shapes: "
    "reshape or transpose one of them.",
}


def unreachable() -> Iterator[codes.Entry]:
    """Yield the reasons why an agent cannot be started on a host, as ssh, the login shell and Python report them."""
    for kind, *templates in CAUSES.values():
        message, remedy = (re.sub(r"\{\w+\}", "…", template) for template in templates)
        yield codes.Entry(f"unreachable-{kind}", message, remedy, "clusters/ssh/cluster", 0, explicit=True)


def statuses() -> Iterator[codes.Entry]:
    """Yield the errors of the HTTP server itself."""
    for status in (400, 403, 404, 405, 413, 426, 500, 503):
        yield codes.Entry(f"http-{status}", f"{responses[status]}.", HINTS.get(status, ""), "server", 0, explicit=True)
    error = to_api_error(None, 500)
    yield codes.Entry(error.code, error.message, error.hint, "server", 0, explicit=True)


def tables() -> Iterator[codes.Entry]:
    """Yield the messages whose code, text and remedy are in tables: of the system, of a check and of Slurm."""
    refusals = dict((*machine.LIMITS.values(), *files.DISK_ERRORS.values(), files.OTHER_ERROR, ("start-refused", "")))
    for code, remedy in refusals.items():
        yield codes.Entry(code, "", remedy, "core/limits", 0, explicit=True)
    for code, (*texts, _example) in correctness.RULES.items():
        message, remedy = (re.sub(r"\{\w+\}", "…", text) for text in texts)
        yield codes.Entry(code, message, remedy, "core/correctness", 0, explicit=True)
    for pattern, code, remedy in REFUSAL_REMEDIES:
        message = f"sbatch failed: … {pattern} …"
        yield codes.Entry(code, message, remedy, "clusters/slurm", 0, explicit=True)


#: What of the package the entries about the end of a rank belong to (see SUBJECTS).
_RANKS = "core/failure"


def failures() -> Iterator[codes.Entry]:
    """Yield what is said of a rank's end beyond its exception. Raises ValueError for other words."""
    for code, module, text, message, remedy in (
        ("rank-ended-early", failure, "exited with code 0 before the training code finished",
         "Rank … exited with code 0 before the training code finished",
         failure._ENDED_EARLY_REMEDY),
        ("uneven-steps", failure, "the ranks ran different numbers of steps",
         "Rank… had finished … while rank … was at step …: the ranks ran different numbers of steps",
         collectives.UNEVEN_REMEDY),
        ("unequal-calls", failure, "did not run the same steps or collective calls",
         "Rank… had finished … while rank … was still waiting for …: the ranks did not run the same steps or "
         "collective calls",
         failure._UNEQUAL_REMEDY),
        ("collective-mismatch", postmortem, postmortem._MISMATCH, postmortem._MISMATCH, postmortem._MISMATCH_REMEDY),
        ("rank-killed", failure, "ended by SIG", "Rank … ended by SIGKILL",
         "The process was killed from outside, usually because the memory of the host or of its limit ran out; the "
         "failure says so if the kernel recorded it. Use a smaller batch, fewer workers in the DataLoader, or a host "
         "with more memory."),
        ("rank-terminated", failure, "ended by SIG", "Rank … ended by SIGTERM",
         "Another program asked the process to end: a time limit, a preemption, or another user of that host."),
        ("rank-crashed", failure, "ended by SIG", "Rank … ended by SIG…",
         "A crash (SIGSEGV, SIGABRT, SIGBUS, SIGFPE) comes from compiled code; the failure shows the line of Python "
         "that called it, if Python could still write it. Run one rank alone, and check that the versions fit: "
         "`distdl doctor`."),
        ("rank-signal", failure, "ended by SIG", "Rank … ended by SIG…",
         "Another program or the code itself sent this signal."),
        ("rank-exception", failure, "rank-{kind}", "Rank …: an exception of the code",
         "The message and the traceback say which line of the code raised it."),
        ("rank-exit", failure, "exit code ", "Rank … exit code …",
         "The code called sys.exit() or os._exit(); the last error lines are in the failure and in the rank's log."),
        ("rank-lost", failure, "lost with ", "Rank … lost with …",
         "The host stopped responding: `distdl clusters check NAME` says why. With `max_restarts` all ranks "
         "restart from their checkpoint, with `min_node_count` also without that host."),
    ):  # fmt: skip
        if text not in inspect.getsource(module):
            raise ValueError(f"{module.__name__} does not say {text!r} any more; change docs/reference.py.")
        yield codes.Entry(code, message, remedy, _RANKS, 0, explicit=True)


def _subject(inside: str) -> str:
    fitting = [room for room in SUBJECTS if inside == room or inside.startswith(f"{room}/")]
    return SUBJECTS[max(fitting, key=len)] if fitting else "Jobs"


# Markdown -----------------------------------------------------------------------------------------


def anchor(text: str) -> str:
    """Return the address of a text within its page."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80].rstrip("-")


def _text(text: str) -> str:
    """Return a sentence of the code as Markdown: ``code`` and `code` stay code, all else is plain."""
    pieces = re.split(r"(``?[^`]+``?)", text.replace("\n", " ") if "\n\n" not in text else text)
    return "".join(f"`{piece.strip('`')}`" if piece.startswith("`") else piece.translate(_PLAIN) for piece in pieces)


_PLAIN = str.maketrans(
    {"<": "&lt;", ">": "&gt;", "*": "\\*", "_": "\\_", "[": "\\[", "]": "\\]", "#": "\\#", "{": "\\{"}
)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [tuple(head), *[tuple(row) for row in rows]]
    cells = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in lines]
    rule = " | ".join("---" for _ in lines[0])
    return "\n".join(f"| {line} |" for line in (cells[0], rule, *cells[1:]))
