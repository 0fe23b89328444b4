"""A Batch AI job's command line, taken apart: which Python script it runs, with which arguments, on how many processes.

Batch AI's users wrote the ``mpirun`` themselves, often in a shell script. Here the backend starts the ranks, so of such
a line only the script, its arguments, the counts and the variables are kept; everything else is told as left out.
Nothing is ever run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator

from distdl_jupyter.compat.batchai import launchers
from distdl_jupyter.compat.batchai.command import ASSIGNMENT, PYTHON, REMEDY, Command
from distdl_jupyter.core.errors import InvalidSpec

#: Programs that only print, and words before a command that change nothing of it.
_PRINTING = ("echo", "cat", "env", "printenv", "hostname", "ls", "pwd", "date", "df", "ifconfig", "ip", "ibv_devinfo",
             "ibstat", "nvidia-smi", "lscpu", "free", "true", "set", "ulimit", "sleep")  # fmt: skip
_PREPARING = ("pip", "pip3", "conda", "apt", "apt-get", "sudo", "mkdir", "cp", "mv", "rm", "chmod", "ln", "tar",
              "unzip", "wget", "curl", "git", "make", "cmake", "ldconfig")  # fmt: skip
_BEFORE = ("exec", "time", "nohup")
_SHELL_WORDS = ("if", "for", "while", "case", "until", "function")


def take_apart(line: str, text: Callable[[str], str | None] | None = None) -> Command:
    """Return what a shell's command line runs; ``text`` gives the text of a shell script, None when it is not here.

    Raises InvalidSpec when it is not one Python script.
    """
    told = Command() if text is None else Command(text=text)
    _read(line, told)
    if not told.script:
        raise InvalidSpec("The command line runs no Python script.", field="commandLine", hint=REMEDY)
    return told


def words(text: str) -> tuple[str, ...]:
    """Return a text of arguments as single words, as a shell splits them. Raises InvalidSpec."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidSpec(f"The arguments {text!r:.80} cannot be split: {error}.", field="commandLineArgs",
                          hint="Close every quotation mark.") from None  # fmt: skip


def _read(line: str, told: Command) -> None:
    if "$(" in line or "`" in line:
        raise InvalidSpec("The command line runs another command within it, which is known only when it runs.",
                          field="commandLine", hint=REMEDY)  # fmt: skip
    for command in _commands(line):
        _one(command, told)


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the single commands of a line as words; redirections and what pipes lead to are left out."""
    joined = re.sub(r"\\\r?\n", " ", line)
    lexer = shlex.shlex(re.sub(r"[\r\n]+", " ; ", joined), posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        pieces = list(lexer)
    except ValueError as error:
        raise InvalidSpec(f"The command line cannot be split: {error}.", field="commandLine",
                          hint="Close every quotation mark.") from None  # fmt: skip
    command: list[str] = []
    at, skipping = 0, False
    while at < len(pieces):
        piece = pieces[at]
        at += 1
        if piece and set(piece) <= set(";&|<>"):
            if "<" in piece or ">" in piece:
                at += 1  # the file that is read or written
                if command and command[-1] in ("1", "2"):
                    command.pop()
                continue
            if command and not skipping:
                yield command
            command, skipping = [], piece == "|"
        else:
            command.append(piece)
    if command and not skipping:
        yield command


def _one(words_: list[str], told: Command) -> None:
    rest = list(words_)
    while rest and (rest[0] in _BEFORE or ASSIGNMENT.fullmatch(rest[0])):
        first = rest.pop(0)
        if found := ASSIGNMENT.fullmatch(first):
            told.variables[found[1]] = found[2]
    if not rest:
        return
    program, name = rest[0], rest[0].rpartition("/")[2]
    if PYTHON.fullmatch(program) or program.endswith(".py"):
        _python(rest, told)
    elif name in launchers.NAMES:
        _one(rest[launchers.take(rest, told) :], told)
    elif name in ("bash", "sh") and len(rest) > 2 and rest[1] in ("-c", "-lc", "-ec"):
        _read(rest[2], told)
    else:
        _beside(rest, name, told)


def _beside(rest: list[str], name: str, told: Command) -> None:
    """Take a command that trains nothing, or refuse it."""
    said = " ".join(rest)
    if name == "cd" and len(rest) > 1:
        told.directory = rest[1]
    elif name == "export":
        told.variables |= {found[1]: found[2] for word in rest[1:] if (found := ASSIGNMENT.fullmatch(word))}
    elif name in ("source", "."):
        told.left_out.append((said, "the backend needs no preparation of the shell"))
    elif name in _PRINTING:
        told.left_out.append((said, "it only prints"))
    elif name in _PREPARING:
        told.left_out.append((said, "nothing is installed or moved: do it once, before the job"))
    elif name in ("bash", "sh") or name.endswith(".sh"):
        _shell_script(rest[1:] if name in ("bash", "sh") else rest, told)
    elif name in _SHELL_WORDS:
        raise InvalidSpec(f"The command line is a program of the shell ({name!r}), which is not read.",
                          field="commandLine", hint=REMEDY)  # fmt: skip
    else:
        raise InvalidSpec(f"The command line runs {rest[0]}, which is no Python.", field="commandLine", hint=REMEDY)


def _shell_script(rest: list[str], told: Command) -> None:
    """Take a shell script as if its lines stood in the command line."""
    flagless = [word for word in rest if not word.startswith("-")]
    path = flagless[0] if flagless else ""
    text = told.text(path) if path else None
    if text is None:
        raise InvalidSpec(f"The command line runs the shell script {path}, which is not here.", field="commandLine",
                          hint=f"Put it beside job.json. Or: {REMEDY}")  # fmt: skip
    if len(flagless) > 1:
        raise InvalidSpec(f"The shell script {path} is given arguments, which are not followed.", field="commandLine",
                          hint=REMEDY)  # fmt: skip
    told.left_out.append((path, "its lines are read as if they stood in the command line"))
    told.text = lambda _path: None  # one that calls another, or itself, is not followed
    _read(re.sub(r"(?m)(^|\s)#.*$", "", text), told)


def _python(rest: list[str], told: Command) -> None:
    """Take ``python [FLAGS] script.py ...``."""
    at = 0 if rest[0].endswith(".py") else 1
    while at < len(rest) and rest[at].startswith("-"):
        if rest[at] in ("-m", "-c", "-"):
            raise InvalidSpec(f"The command line runs python {rest[at]}, which names no script.", field="commandLine",
                              hint="Name a script: python SCRIPT.py ARGUMENTS.")  # fmt: skip
        told.left_out.append((rest[at], "the interpreter's own flags are set by this package"))
        at += 2 if rest[at] in ("-W", "-X") else 1
    if at >= len(rest):
        raise InvalidSpec("The command line runs Python without a script.", field="commandLine", hint=REMEDY)
    if told.script:
        raise InvalidSpec(f"The command line runs two scripts, {told.script} and {rest[at]}.", field="commandLine",
                          hint="Make two jobs of them.")  # fmt: skip
    told.script, told.arguments = rest[at], tuple(rest[at + 1 :])


def packages(line: str) -> list[str]:
    """Return the names of the packages that a command line installs with pip, in order."""
    found: list[str] = []
    for command in _commands(line):
        words_ = command[2:] if command[1:2] == ["-m"] and PYTHON.fullmatch(command[0]) else command
        if len(words_) > 1 and words_[0] in ("pip", "pip3") and words_[1] == "install":
            plain = [word for word in words_[2:] if not word.startswith("-") and "/" not in word]
            found += [re.split(r"[<>=!~\[]", word)[0] for word in plain]
    return list(dict.fromkeys(name for name in found if name))
