"""Reads the hosts of an SSH cluster from its options, a hostfile and the ssh configuration.

This module only reads files. It neither runs ssh nor contacts a host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from distdl_jupyter.clusters.agents.agent import DIRECTORY_HELP, NETWORK_HELP, OVERSUBSCRIBE_HELP, SHARED_HELP, Host
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import option
from distdl_jupyter.core.spec import JobSpec

#: A host: an optional user, the name or address, and an optional number of slots after a colon.
_HOST_PATTERN = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_](?:[A-Za-z0-9_.+\\-]*[A-Za-z0-9_.+-])?)@)?"
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[^\W-][\w.%-]*))"
    r"(?::(?P<slots>\d+))?"
)
_SLOTS_PATTERN = re.compile(r"\bslots\s*=\s*(\d+)")


@dataclass(frozen=True, slots=True)
class SshOptions:
    """The hosts and how to reach them. Names, users, ports and keys are best set in ``~/.ssh/config``."""

    hosts: str = option(
        "", "hosts in order, as ssh accepts them: gpu1, gpu2:4 (for 4 processes), user@gpu3", first=True
    )
    hostfile: str = option("", "a file with one host per line, in the format of Open MPI and Horovod")
    ssh_config: str = option("", "the ssh configuration file (default: ~/.ssh/config)")
    python: str = option("", "the Python that runs ranks on the hosts (default: the job's own path)")
    directory: str = option("", DIRECTORY_HELP)
    network: str = option("", NETWORK_HELP)
    patience_seconds: float = option(20.0, "seconds without a heartbeat after which hosts stop a job's ranks")
    shared: bool | None = option(None, SHARED_HELP)
    oversubscribe: bool = option(default=False, help_=OVERSUBSCRIBE_HELP)

    def __post_init__(self) -> None:
        hosts: Iterable[object] = self.hosts or ""  # Python callers may also pass a list
        joined = hosts if isinstance(hosts, str) else ",".join(map(str, hosts))
        object.__setattr__(self, "hosts", joined)


def parse_hosts(options: SshOptions) -> tuple[Host, ...]:
    """Return the cluster's hosts in order; the slots of a repeated host are added.

    Raises InvalidSpec if there are no hosts or an entry is invalid; the error names the entry.
    """
    if options.hosts and options.hostfile:
        text = "hosts and hostfile are both set. Set only one of them."
        raise InvalidSpec(text, code="hosts-and-hostfile", field="hostfile")
    entries = _read_hostfile(Path(options.hostfile)) if options.hostfile else []
    entries += [_parse_host(entry, "hosts") for entry in re.split(r"[,\s]+", options.hosts) if entry]
    hosts: dict[str, Host] = {}
    for host in entries:
        previous = hosts.get(host.name)
        hosts[host.name] = replace(previous, slots=(previous.slots or 1) + (host.slots or 1)) if previous else host
    if not hosts:
        hint = "Set hosts=['gpu1', 'gpu2'], or hostfile."
        raise InvalidSpec("The cluster has no hosts.", code="hosts-missing", field="hosts", hint=hint)
    return tuple(hosts.values())


def select_hosts(spec: JobSpec, options: SshOptions) -> tuple[tuple[Host, ...], tuple[Host, ...]]:
    """Return the hosts of a job, and the cluster's other hosts. Raises InvalidSpec if there are too few."""
    hosts = parse_hosts(options)
    if spec.node_count > len(hosts):
        text = f"{spec.compute_target} has {plural(len(hosts), 'host')}, but the job needs {spec.node_count} nodes."
        hint = f"Set node_count to at most {len(hosts)}, or add hosts to the cluster."
        raise InvalidSpec(text, code="too-many-nodes", field="node_count", hint=hint)
    return hosts[: spec.node_count], hosts[spec.node_count :]


def list_configured_hosts() -> list[str]:
    """Return the hosts without wildcards in ``~/.ssh/config``, in the order of the file."""
    try:
        text = (Path.home() / ".ssh" / "config").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = re.findall(r"^\s*host(?:\s*=\s*|\s+)(.*)$", text, re.IGNORECASE | re.MULTILINE)
    return list(dict.fromkeys(name for line in lines for name in line.split() if not set(name) & set("*?!\"'")))


def _parse_host(text: str, field: str) -> Host:
    match = _HOST_PATTERN.fullmatch(text)
    if match is None or match["slots"] == "0":
        hint = "Write gpu1, me@gpu1 or gpu1:4 (for 4 processes). User names have letters, digits and . _ + - only."
        raise InvalidSpec(f"{text!r} is not a valid host.", code="host-name-invalid", field=field, hint=hint)
    name = match["ipv6"] or match["name"]
    target = f"{match['user']}@{name}" if match["user"] else name
    return Host(name, target, int(match["slots"] or 0))


def _read_hostfile(path: Path) -> list[Host]:
    """Read lines such as ``gpu1 slots=4 max_slots=8`` (Open MPI, Horovod) or ``gpu1:4`` (MPICH, Horovod's -H)."""
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        message = f"Cannot read the hostfile {path}: {reason}."
        raise InvalidSpec(message, code="hostfile-unreadable", field="hostfile") from None
    hosts = []
    for line in text.splitlines():
        name, *rest = line.partition("#")[0].split(maxsplit=1) or [""]
        slots = _SLOTS_PATTERN.search(rest[0]) if rest else None
        if name:
            host = _parse_host(name, "hostfile")
            hosts.append(replace(host, slots=int(slots[1])) if slots else host)
    return hosts
