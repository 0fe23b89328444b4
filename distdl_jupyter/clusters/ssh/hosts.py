"""Which hosts a cluster has: from a list, a hostfile as Open MPI and Horovod take it, or the ssh configuration.

Reads files only; nothing is asked of ssh or of a host here.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distdl_jupyter.clusters.agents.agent import Host
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import plural

if TYPE_CHECKING:
    from distdl_jupyter.clusters.ssh.options import SshOptions
    from distdl_jupyter.core.spec import JobSpec

#: A host as it is written: user, name or address, and behind a colon how many processes fit.
_WORD = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_](?:[A-Za-z0-9_.+\\-]*[A-Za-z0-9_.+-])?)@)?"
    r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[^\W-][\w.%-]*))"
    r"(?::(?P<slots>\d+))?"
)
_WILD = re.compile(r"[*?\[]")
_SLOTS = re.compile(r"\bslots\s*=\s*(\d+)")
#: Files that the ssh configuration includes, one within the other, at most; OpenSSH stops at the same depth.
_DEEPEST = 16


def listed(options: SshOptions) -> tuple[Host, ...]:
    """Return the cluster's hosts in order, each once; one that is named several times has as many slots.

    Raises InvalidSpec that says which word or line is wrong, or that there is none.
    """
    if options.hosts and options.hostfile:
        raise InvalidSpec(
            "hosts and hostfile are both set.",
            code="hosts-and-hostfile",
            field="hostfile",
            hint="Set only one of them.",
        )
    found = _from_file(Path(options.hostfile)) if options.hostfile else _from_list(options)
    if not found:
        raise InvalidSpec(
            "The cluster has no hosts.",
            code="hosts-missing",
            field="hosts",
            hint="Set hosts=['gpu1', 'gpu2'], or hostfile.",
        )
    return _merged(found)


def chosen(spec: JobSpec, options: SshOptions) -> tuple[Host, ...]:
    """Return the hosts that a job runs on: the first ones. Raises InvalidSpec when it wants more than there are."""
    hosts = listed(options)
    if spec.node_count > len(hosts):
        raise InvalidSpec(
            f"{spec.compute_target} has {plural(len(hosts), 'host')}, but the job needs {spec.node_count} nodes.",
            code="too-many-nodes",
            field="node_count",
            hint=f"Set node_count to at most {len(hosts)}, or add hosts to the cluster.",
        )
    return hosts[: spec.node_count]


def spare(spec: JobSpec, options: SshOptions) -> tuple[Host, ...]:
    """Return the hosts of the cluster that a job does not use."""
    return listed(options)[spec.node_count :]


def replacement(host: str, gone: str) -> str:
    """Return that another host takes the place of one that cannot be reached any more."""
    return f"{gone} is no longer reachable. {host} replaces it."


def configured(ssh_config: str = "") -> list[str]:
    """Return the hosts that have a name of their own in the ssh configuration, in the order of the file."""
    path = Path(ssh_config).expanduser() if ssh_config else Path.home() / ".ssh" / "config"
    return list(dict.fromkeys(name for name in _names(path, 0) if not set(name) & set("*?!")))


def _from_list(options: SshOptions) -> list[Host]:
    words = [word for word in re.split(r"[,\s]+", options.hosts) if word]
    found: list[Host] = []
    for word in words:
        found.extend(_matching(word, options) if _is_pattern(word) else [_host(word, "hosts")])
    return found


def _is_pattern(word: str) -> bool:
    return bool(_WILD.search(word)) and _WORD.fullmatch(word) is None


def _matching(word: str, options: SshOptions) -> list[Host]:
    """Return the configured hosts that a pattern such as ``gpu*`` or ``me@gpu*:4`` stands for."""
    user, at, rest = word.rpartition("@")
    pattern, _, slots = rest.partition(":")
    names = fnmatch.filter(configured(options.ssh_config), pattern)
    if not names:
        raise InvalidSpec(
            f"No host in the ssh configuration matches {pattern!r}.",
            code="host-pattern-unmatched",
            field="hosts",
            hint="List the hosts, or add a Host entry for each to ~/.ssh/config.",
        )
    return [_host(f"{user}{at}{name}" + (f":{slots}" if slots else ""), "hosts") for name in names]


def _host(word: str, field: str) -> Host:
    found = _WORD.fullmatch(word)
    if found is None or found["slots"] == "0":
        raise InvalidSpec(
            f"{word!r} is not a valid host.",
            code="host-name-invalid",
            field=field,
            hint="Write a host as gpu1, me@gpu1 or gpu1:4 (for 4 processes). A user name may contain letters, digits "
            "and . _ + - only.",
        )
    name = found["six"] or found["name"]
    target = f"{found['user']}@{name}" if found["user"] else name
    return Host(name, target, int(found["slots"] or 0))


def _from_file(path: Path) -> list[Host]:
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise InvalidSpec(
            f"Cannot read the hostfile {path}: {reason}.",
            code="hostfile-unreadable",
            field="hostfile",
            hint="Set hostfile to the path of a readable file.",
        ) from None
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [_line(line) for line in lines if line]


def _line(line: str) -> Host:
    """Read ``gpu1 slots=4 max_slots=8`` (Open MPI, Horovod) or ``gpu1:4`` (MPICH, Horovod's -H)."""
    word, *rest = line.split(maxsplit=1)
    host = _host(word, "hostfile")
    slots = _SLOTS.search(rest[0]) if rest else None
    return replace(host, slots=int(slots[1])) if slots else host


def _merged(found: Iterable[Host]) -> tuple[Host, ...]:
    hosts: dict[str, Host] = {}
    for host in found:
        known = hosts.get(host.name)
        hosts[host.name] = replace(known, slots=(known.slots or 1) + (host.slots or 1)) if known else host
    return tuple(hosts.values())


def _names(path: Path, depth: int) -> Iterator[str]:
    """Yield the patterns of all ``Host`` lines of a configuration file and of those that it includes."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        keyword, values = _setting(line)
        if keyword == "host":
            yield from values
        elif keyword == "include" and depth < _DEEPEST:
            for value in values:
                for included in _included(value):
                    yield from _names(included, depth + 1)


def _setting(line: str) -> tuple[str, list[str]]:
    """Return a line's keyword in lower case and its values: ``Host a "b c"``, ``host=a``."""
    found = re.match(r"\s*(\w+)(?:\s*=\s*|\s+)(.*)", line)
    if found is None:
        return "", []
    return found[1].lower(), [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|([^\s"]+)', found[2])]


def _included(value: str) -> list[Path]:
    """Return the files that an Include names; what is not absolute lies in ~/.ssh (ssh_config(5))."""
    path = Path(value).expanduser()
    path = path if path.is_absolute() else Path.home() / ".ssh" / path
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
