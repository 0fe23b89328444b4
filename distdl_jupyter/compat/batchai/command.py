"""What a Batch AI job runs: the settings of its toolkit as one Python script with arguments, counts and a backend.

Batch AI's users wrote ``mpirun`` themselves, often in a shell script. Here the backend starts the ranks: of a line
``[mpirun FLAGS] python SCRIPT.py ARGUMENTS`` the script, its arguments, the counts and the variables are kept.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from distdl_jupyter.compat.batchai.job_file import Fields
from distdl_jupyter.core.errors import InvalidSpec

ReadScript = Callable[[str], str | None]
_REMEDY = "Write the command as: python SCRIPT.py ARGUMENTS, with or without mpirun before it."
_QUOTES = "Close every quotation mark."
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
#: Command substitution, and operators of the shell within quotation marks.
_NOT_READ = re.compile(r"\$\(|`|\0|([\"'])[;&|]+\1|\\[;&|]")
#: A redirection, or as group 1 the quoted text that may hold one.
_REDIRECTION = re.compile(
    r"""("(?:\\.|[^"\\])*"|'[^']*'|\\.)|(?:(?<!\S)[12&])?(?:>>?|<)\s*(?:&\d|[^\s;&|]+)""", re.DOTALL
)
#: Patterns of a command whose words each end with a null character.
_WORD, _PYTHON = r"[^\0]*\0", r"(?:[^\0]*/)?python[\d.]*\0"
#: A flag of mpirun (Open MPI, Intel MPI) or horovodrun with its words; a flag that is not listed has one word at most.
_FLAG = rf"""(?:
    --?(?:g?mca|g?env(?!\0[^\0]*=))\0{_WORD}{_WORD}
  | --?(?:allow-run-as-root|oversubscribe|tag-output|report-bindings|display-map|verbose|v|quiet|q|genvall|envall|
          prepend-rank|l|gloo|mpi|disable-cache|nolocal)\0
  | -[^\0=]*=[^\0]*\0
  | -[^\0]*\0(?:(?!-|{_PYTHON})[^\0]+\0)?
)"""
_LAUNCHER = r"mpirun|mpiexec(?:\.hydra)?|orterun|horovodrun"
_STARTER = re.compile(rf"python[\d.]*|{_LAUNCHER}")
_TRAINING = re.compile(
    rf"""
    (?:(?:exec|time|nohup)\0)*
    (?:(?:[^\0]*/)?(?P<launcher>{_LAUNCHER})\0(?P<flags>{_FLAG}*+))?
    (?:{_PYTHON}(?P<interpreter>(?:-[WX]\0{_WORD}|-[^\0mc]+\0)*+))?
    (?P<script>[^\0=\s-][^\0=\s]*\.py)\0
    (?P<arguments>(?:(?!:\0){_WORD})*+)
    """,
    re.VERBOSE,
)
_FLAGS = re.compile(_FLAG, re.VERBOSE)
#: Flags that give the number of processes, in all or on each node.
_COUNTS = {
    "np": "processes", "n": "processes", "c": "processes",
    "ppn": "per_node", "npernode": "per_node", "N": "per_node", "perhost": "per_node",
}  # fmt: skip
#: Commands that print, or prepare what is to be prepared once.
_BESIDE = {
    "echo", "cat", "env", "printenv", "hostname", "ls", "pwd", "date", "df", "ifconfig", "ip", "ibv_devinfo", "ibstat",
    "nvidia-smi", "lscpu", "free", "true", "set", "ulimit", "sleep", "source", ".", "pip", "pip3", "conda", "apt",
    "apt-get", "sudo", "mkdir", "cp", "mv", "rm", "chmod", "ln", "tar", "unzip", "wget", "curl", "git", "make",
    "cmake", "ldconfig",
}  # fmt: skip
_BACKENDS = {
    "horovodSettings": "horovod-gloo", "pyTorchSettings": "torch", "tensorFlowSettings": "plain",
    "caffe2Settings": "torch",
}  # fmt: skip
#: Backends by PyTorch's communicationBackend.
_TORCH = {"nccl": "torch-nccl", "gloo": "torch-gloo", "tcp": "torch-gloo"}


@dataclass(slots=True)
class Command:
    """One Python script that runs as ``processes`` on ``nodes``; a ``backend`` of "" depends on the script's imports.

    ``ignored`` pairs a part of the job with the reason why it is not needed.
    """

    script: str = ""
    arguments: tuple[str, ...] = ()
    launcher: str = ""
    processes: int | None = None
    per_node: int | None = None
    nodes: int = 1
    backend: str = ""
    directory: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    #: Returns the text of a shell script, None when it is not here.
    read_script: ReadScript = field(default=lambda _path: None, repr=False, compare=False)


def toolkit_command(kind: str, settings: Fields, nodes: int, read_script: ReadScript) -> Command:
    """Return what toolkit settings run on so many nodes; ``processes`` and ``backend`` are set. Raises InvalidSpec."""
    if "commandLine" in settings:
        command = parse_command_line(settings.text("commandLine"), read_script)
        everywhere = bool(command.launcher) or kind == "customMpiSettings"
        command.backend = "" if everywhere else "plain"
    else:
        command, everywhere = _script_command(kind, settings, nodes), kind != "tensorFlowSettings"
    # Batch AI ran TensorFlow's master, and a command line without mpirun, on the first node alone.
    count = settings.count("processCount") if everywhere and kind != "caffe2Settings" else None
    nodes = nodes if everywhere else 1
    total = command.processes or (command.per_node or 0) * nodes or count or nodes
    command.processes, command.nodes = total, min(nodes, total)
    if total % command.nodes:
        raise InvalidSpec(
            f"{total} processes cannot be divided equally among {command.nodes} nodes.",
            code="batchai-processes-uneven",
            field="processCount",
            hint="Set node_count and process_count_per_node.",
        )
    return command


def _script_command(kind: str, settings: Fields, nodes: int) -> Command:
    servers = "parameterServerCommandLineArgs" in settings or (settings.count("workerCount") or 1) > 1
    if servers or (nodes > 1 and "workerCommandLineArgs" in settings):
        raise InvalidSpec(
            "TensorFlow with parameter servers is not supported.",
            code="batchai-parameter-servers",
            field="tensorFlowSettings",
            hint="Use MultiWorkerMirroredStrategy in the script, and submit it with distributed_backend="
            "'tensorflow', or use horovod.tensorflow with horovodSettings.",
        )
    if not (script := settings.text("pythonScriptFilePath")):
        raise InvalidSpec(
            f"{kind} has no pythonScriptFilePath and no commandLine, so there is no script to run.",
            code="batchai-script-missing",
            field=kind,
            hint="Set one of them.",
        )
    try:
        arguments = shlex.split(settings.text("commandLineArgs") or settings.text("masterCommandLineArgs"))
    except ValueError as error:
        raise InvalidSpec(
            f"commandLineArgs is not a valid command line: {error}.",
            code="batchai-arguments-invalid",
            field="commandLineArgs",
            hint=_QUOTES,
        ) from None
    command = Command(script, tuple(arguments), backend=_BACKENDS.get(kind, ""))
    if kind == "caffe2Settings" and nodes == 1:
        command.backend = "plain"
    if kind == "pyTorchSettings":
        wanted = settings.text("communicationBackend").lower()
        command.backend = _TORCH.get(wanted, "torch")
        command.variables["AZ_BATCHAI_PYTORCH_INIT_METHOD"] = "env://"
        if wanted == "mpi":
            command.ignored.append(("communicationBackend mpi", "torch chooses Gloo or NCCL: pip's torch has no MPI"))
    if interpreter := settings.text("pythonInterpreterPath"):
        command.ignored.append((f"pythonInterpreterPath {interpreter}", "ranks run under this kernel's Python"))
    return command


def parse_command_line(line: str, read_script: ReadScript = lambda _path: None) -> Command:
    """Return the one Python script that a shell's command line runs; nothing is run. Raises InvalidSpec."""
    command = Command(read_script=read_script)
    _parse(line, command)
    if not command.script:
        raise _refused("runs no Python script")
    return command


def _refused(what: str, hint: str = _REMEDY) -> InvalidSpec:
    return InvalidSpec(f"The command line {what}.", code="batchai-command-unsupported", field="commandLine", hint=hint)


def _parse(line: str, command: Command) -> None:
    if _NOT_READ.search(line):
        raise _refused("runs another command within it, or quotes an operator of the shell")
    for words in _simple_commands(line):
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            command.variables[match[1]] = match[2]
            del words[0]
        if words:
            _parse_simple(words, command)


def _simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the commands of a line as words, without redirections and without the commands that read from a pipe."""
    text = re.sub(r"[\r\n]+", " ; ", re.sub(r"\\\r?\n", " ", line))
    lexer = shlex.shlex(_REDIRECTION.sub(r"\1", text), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    piped = False
    try:
        for word in (*lexer, ";"):
            if not word or set(word) - set(";&|"):
                words.append(word)
                continue
            if words and not piped:
                yield words
            words, piped = [], word in ("|", "|&")
    except ValueError as error:
        raise _refused(f"is not valid: {error}", _QUOTES) from None


def _parse_simple(words: list[str], command: Command) -> None:
    program = words[0].rpartition("/")[2]
    if match := _TRAINING.fullmatch("".join(f"{word}\0" for word in words)):
        _set_training(match, command)
    elif program in ("bash", "sh") and len(words) == 3 and words[1] in ("-c", "-lc", "-ec"):
        _parse(words[2], command)
    elif program in ("bash", "sh") or program.endswith(".sh"):
        _parse_shell_script([word for word in words[program in ("bash", "sh") :] if word[:1] != "-"], command)
    elif program == "cd" and len(words) == 2:
        command.directory = command.directory if command.script else words[1]
    elif program == "export":
        command.variables |= {match[1]: match[2] for word in words[1:] if (match := _ASSIGNMENT.fullmatch(word))}
    elif program in _BESIDE:
        command.ignored.append((" ".join(words), "only the script is run; run the preparation once before the job"))
    elif _STARTER.fullmatch(program):
        raise _refused(f"runs {program} without a script SCRIPT.py after its flags")
    else:
        raise _refused(f"runs {words[0]}, which is not Python")


def _parse_shell_script(words: list[str], command: Command) -> None:
    """Read the lines of a shell script as if they stood in the command line; a script that it calls is not read."""
    path = words[0] if words else ""
    text = command.read_script(path) if len(words) == 1 else None
    if text is None:
        if len(words) > 1:
            raise _refused(f"runs the shell script {path} with arguments, which is not supported")
        raise _refused(
            f"runs the shell script {path}, which is missing", f"Copy the file to the folder of job.json. Or: {_REMEDY}"
        )
    command.ignored.append((path, "its lines are treated as part of the command line"))
    command.read_script = lambda _path: None
    _parse(re.sub(r"(?m)(^|\s)#.*$", "", text), command)


def _set_training(match: re.Match[str], command: Command) -> None:
    if command.script:
        raise _refused(f"runs two scripts, {command.script} and {match['script']}", "Split it into two jobs.")
    command.script, command.arguments = match["script"], tuple(match["arguments"].split("\0")[:-1])
    if match["launcher"]:
        command.launcher = match["launcher"]
        command.ignored.append(
            (command.launcher, "the backend starts the ranks; without a count it is one on each node")
        )
    for flag in _FLAGS.findall(match["flags"] or ""):
        _set_flag(flag.split("\0")[:-1], command)
    if flags := match["interpreter"]:
        command.ignored.append((" ".join(flags.split("\0")[:-1]), "this package sets the flags of the interpreter"))


def _set_flag(words: list[str], command: Command) -> None:
    """Take counts and variables from a flag of mpirun; everything else of it is ignored."""
    name, equals, value = words[0].lstrip("-").partition("=")
    value = value if equals else "=".join(words[1:])
    if name in _COUNTS and value[:1] == "$":
        command.ignored.append((" ".join(words), "its value is known only when it runs"))
    elif name in _COUNTS:
        if not value.isdecimal() or int(value) < 1:
            raise InvalidSpec(
                f"{words[0]} of {command.launcher} is {value!r}, but must be an integer of at least 1.",
                code="batchai-count-invalid",
                field="commandLine",
                hint=_REMEDY,
            )
        setattr(command, _COUNTS[name], int(value))
    elif name in ("x", "env", "genv") and (match := _ASSIGNMENT.fullmatch(value)):
        command.variables[match[1]] = match[2]
    elif name == "timeline-filename":
        command.variables["HOROVOD_TIMELINE"] = value
    else:
        command.ignored.append((" ".join(words), "the backend finds the hosts and networks and places the ranks"))
