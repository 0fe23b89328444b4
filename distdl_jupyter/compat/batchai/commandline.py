"""A Batch AI job's command line, taken apart: which Python script it runs, with which arguments, on how many processes.

Batch AI's users wrote the ``mpirun`` themselves. Here the backend starts the ranks, so of such a line only the script,
its arguments, the counts and the variables are kept; everything else is told as left out. Nothing is ever run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from distdl_jupyter.core.errors import InvalidSpec

_REMEDY = "Write the command as: python SCRIPT.py ARGUMENTS, with or without mpirun before it."
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "horovodrun")
#: Programs that only print, and words before a command that change nothing of it.
_PRINTING = ("echo", "cat", "env", "printenv", "hostname", "ls", "pwd", "date", "df", "ifconfig", "ip", "ibv_devinfo",
             "ibstat", "nvidia-smi", "lscpu", "free", "true", "set", "ulimit", "sleep")  # fmt: skip
_PREPARING = ("pip", "pip3", "conda", "apt", "apt-get", "sudo", "mkdir", "cp", "mv", "rm", "chmod", "ln", "tar",
              "unzip", "wget", "curl", "git", "make", "cmake", "ldconfig")  # fmt: skip
_BEFORE = ("exec", "time", "nohup")
_SHELL_WORDS = ("if", "for", "while", "case", "until", "function")

#: Launchers' flags that say how many processes run, in all or on each node.
_TOTAL = ("-np", "--np", "-n", "--n", "-c")
_PER_NODE = ("-ppn", "--ppn", "-npernode", "--npernode", "-N", "-perhost", "--perhost")
#: How many words follow the flags that are left out, and why they can be.
_LEFT_OUT: dict[str, tuple[int, str]] = {}
for _flags, _words, _why in (
    (("-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f", "-hosts", "--hosts", "-host", "--host", "-H"),
     1, "the cluster gives the hosts"),
    (("-mca", "--mca", "-gmca", "--gmca"), 2, "networks and transports are found by the backend"),
    (("-bind-to", "--bind-to", "-map-by", "--map-by", "-rank-by", "--rank-by"), 1, "the backend places the ranks"),
    (("--network-interface", "--network-interfaces", "--nics"), 1, "networks are found by the backend"),
    (("-prefix", "--prefix", "-wdir", "--wdir", "-path", "--path", "--output-filename", "--mpi-args", "--start-timeout",
      "-p", "--ssh-port", "-i", "--ssh-identity-file", "-genvlist", "-envlist", "-iface"), 1, "not needed here"),
    (("--allow-run-as-root", "-allow-run-as-root", "--oversubscribe", "-oversubscribe", "--tag-output", "-tag-output",
      "--report-bindings", "-report-bindings", "-display-map", "--display-map", "-v", "--verbose", "-q", "--quiet",
      "-genvall", "-envall", "-prepend-rank", "-l", "--gloo", "--mpi", "--disable-cache", "-nolocal", "--nolocal"),
     0, "not needed here"),
):  # fmt: skip
    _LEFT_OUT |= dict.fromkeys(_flags, (_words, _why))


@dataclass(slots=True)
class Command:
    """What a command line asks for. ``processes`` is the total, None where it is not said; so is ``per_node``.

    ``left_out`` pairs what stands in the line with why it is not needed.
    """

    script: str = ""
    arguments: tuple[str, ...] = ()
    launcher: str = ""
    processes: int | None = None
    per_node: int | None = None
    directory: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)


def take_apart(line: str) -> Command:
    """Return what a shell's command line runs. Raises InvalidSpec when it is more than one Python script."""
    told = Command()
    _read(line, told)
    if not told.script:
        raise InvalidSpec("The command line runs no Python script.", field="commandLine", hint=_REMEDY)
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
                          field="commandLine", hint=_REMEDY)  # fmt: skip
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
    while rest and (rest[0] in _BEFORE or _ASSIGNMENT.fullmatch(rest[0])):
        first = rest.pop(0)
        if found := _ASSIGNMENT.fullmatch(first):
            told.variables[found[1]] = found[2]
    if not rest:
        return
    program, name = rest[0], rest[0].rpartition("/")[2]
    if _PYTHON.fullmatch(program) or program.endswith(".py"):
        _python(rest, told)
    elif name in _LAUNCHERS:
        _launcher(rest, told)
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
        told.variables |= {found[1]: found[2] for word in rest[1:] if (found := _ASSIGNMENT.fullmatch(word))}
    elif name in ("source", "."):
        told.left_out.append((said, "the backend needs no preparation of the shell"))
    elif name in _PRINTING:
        told.left_out.append((said, "it only prints"))
    elif name in _PREPARING:
        told.left_out.append((said, "nothing is installed or moved: do it once, before the job"))
    else:
        raise InvalidSpec(_refusal(rest[-1] if name in ("bash", "sh") else rest[0], name), field="commandLine",
                          hint=_REMEDY)  # fmt: skip


def _refusal(program: str, name: str) -> str:
    if name in _SHELL_WORDS:
        return f"The command line is a program of the shell ({name!r}), which is not read."
    if name in ("bash", "sh") or program.endswith(".sh"):
        return f"The command line runs the shell script {program}, which is not read."
    return f"The command line runs {program}, which is no Python."


def _launcher(rest: list[str], told: Command) -> None:
    """Take ``mpirun [FLAGS] program ...`` apart."""
    told.launcher = rest[0].rpartition("/")[2]
    at = 1
    while at < len(rest) and not _starts_program(rest[at]):
        at = _flag(rest, at, told)
    _one(rest[at:], told)


def _starts_program(word: str) -> bool:
    return not word.startswith("-") and not word.isdigit()


def _flag(rest: Sequence[str], at: int, told: Command) -> int:
    """Take the flag at ``at`` with what belongs to it; return where the next one is."""
    name, equals, value = rest[at].partition("=")
    if name in ("-x", "-env", "-genv"):
        return _variable(rest, at, told)
    if name in (*_TOTAL, *_PER_NODE, "--timeline-filename"):
        value = value if equals else _word(rest, at + 1, told)
        if name == "--timeline-filename":
            told.variables["HOROVOD_TIMELINE"] = value
        else:
            _count(name, value, told)
        return at + (1 if equals else 2)
    following, why = _LEFT_OUT.get(name, (None, "it is no flag that is known here"))
    end = at + 1 + (0 if equals else following or 0)
    if following is None and not equals:
        # Nobody knows how many words belong to it: all up to the next flag or the program.
        while end < len(rest) and not rest[end].startswith("-") and not _is_program(rest[end]):
            end += 1
    told.left_out.append((" ".join(rest[at:end]), why))
    return end


def _word(rest: Sequence[str], at: int, told: Command) -> str:
    if at < len(rest):
        return rest[at]
    raise InvalidSpec(f"{rest[-1]} of {told.launcher} is the last word, and something has to follow it.",
                      field="commandLine", hint=_REMEDY)  # fmt: skip


def _is_program(word: str) -> bool:
    return bool(_PYTHON.fullmatch(word)) or word.endswith((".py", ".sh")) or word in ("bash", "sh")


def _count(flag: str, text: str, told: Command) -> None:
    if not text.isdigit() or int(text) < 1:
        raise InvalidSpec(f"{flag} of {told.launcher} is {text!r}, but it takes a whole number from 1.",
                          field="commandLine", hint="Give process_count_per_node yourself.")  # fmt: skip
    if flag in _TOTAL:
        told.processes = int(text)
    else:
        told.per_node = int(text)


def _variable(rest: Sequence[str], at: int, told: Command) -> int:
    """Take ``-x NAME=VALUE``, ``-x NAME`` (as it is here), ``-env NAME VALUE`` or ``-env NAME=VALUE``."""
    word = _word(rest, at + 1, told)
    found = _ASSIGNMENT.fullmatch(word)
    if found:
        told.variables[found[1]] = found[2]
    elif rest[at] == "-x":
        told.left_out.append((f"-x {word}", "ranks get the environment that the job is submitted in"))
    else:
        told.variables[word] = _word(rest, at + 2, told)
        return at + 3
    return at + 2


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
        raise InvalidSpec("The command line runs Python without a script.", field="commandLine", hint=_REMEDY)
    if told.script:
        raise InvalidSpec(f"The command line runs two scripts, {told.script} and {rest[at]}.", field="commandLine",
                          hint="Make two jobs of them.")  # fmt: skip
    told.script, told.arguments = rest[at], tuple(rest[at + 1 :])


def packages(line: str) -> list[str]:
    """Return the names of the packages that a command line installs with pip, in order."""
    found: list[str] = []
    for command in _commands(line):
        words_ = command[2:] if command[1:2] == ["-m"] and _PYTHON.fullmatch(command[0]) else command
        if len(words_) > 1 and words_[0] in ("pip", "pip3") and words_[1] == "install":
            plain = [word for word in words_[2:] if not word.startswith("-") and "/" not in word]
            found += [re.split(r"[<>=!~\[]", word)[0] for word in plain]
    return list(dict.fromkeys(name for name in found if name))
