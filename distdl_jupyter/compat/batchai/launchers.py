"""The flags of ``mpirun`` (Open MPI, Intel MPI) and ``horovodrun``: counts, variables, and what is not needed."""

from __future__ import annotations

from collections.abc import Sequence

from distdl_jupyter.compat.batchai.command import ASSIGNMENT, PYTHON, REMEDY, Command
from distdl_jupyter.core.errors import InvalidSpec

NAMES = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "horovodrun")
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


def take(rest: Sequence[str], told: Command) -> int:
    """Take ``mpirun [FLAGS]`` and return where the program begins. Raises InvalidSpec."""
    told.launcher = rest[0].rpartition("/")[2]
    at = 1
    while at < len(rest) and not _starts_program(rest[at]):
        at = _flag(rest, at, told)
    return at


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
                      field="commandLine", hint=REMEDY)  # fmt: skip


def _is_program(word: str) -> bool:
    return bool(PYTHON.fullmatch(word)) or word.endswith((".py", ".sh")) or word in ("bash", "sh")


def _count(flag: str, text: str, told: Command) -> None:
    if text.startswith("$"):
        told.left_out.append((f"{flag} {text}", "its value is known only when it runs"))
        return
    if not text.isdigit() or int(text) < 1:
        raise InvalidSpec(f"{flag} of {told.launcher} is {text!r}, but it takes a whole number from 1.",
                          field="commandLine", hint=f"Write the number: {told.launcher} {flag} 4 ...")  # fmt: skip
    if flag in _TOTAL:
        told.processes = int(text)
    else:
        told.per_node = int(text)


def _variable(rest: Sequence[str], at: int, told: Command) -> int:
    """Take ``-x NAME=VALUE``, ``-x NAME`` (as it is here), ``-env NAME VALUE`` or ``-env NAME=VALUE``."""
    word = _word(rest, at + 1, told)
    found = ASSIGNMENT.fullmatch(word)
    if found:
        told.variables[found[1]] = found[2]
    elif rest[at] == "-x":
        told.left_out.append((f"-x {word}", "ranks get the environment that the job is submitted in"))
    else:
        told.variables[word] = _word(rest, at + 2, told)
        return at + 3
    return at + 2
