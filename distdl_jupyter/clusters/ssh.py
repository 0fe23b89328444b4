"""SSH hosts as a cluster: ``ssh`` starts one agent on each host, and the agent starts and ends the ranks.

The hosts come from the cluster's options, a hostfile and the ssh configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
import os
import re
import shlex
import shutil
import sys
import time
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.agents import checkup
from distdl_jupyter.clusters.agents.agent import (
    DIRECTORY_HELP,
    NETWORK_HELP,
    OVERSUBSCRIBE_HELP,
    SHARED_HELP,
    Host,
    HostFailed,
    ReachError,
    query_all,
)
from distdl_jupyter.clusters.agents.cluster import AgentCluster, build_rank_slots
from distdl_jupyter.clusters.agents.connection import (
    DEFAULT_DIRECTORY,
    READ_BYTES,
    Connection,
    Link,
    format_last_line,
    get_loop,
    start_agents,
)
from distdl_jupyter.clusters.agents.staging import AgentNodes, StagedJob
from distdl_jupyter.clusters.base import Context, NodeCheck, NodeInfo, RunNotice
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.plan import Placement, option
from distdl_jupyter.core.spec import JobSpec

#: A host: an optional user, the name or address, and an optional number of slots after a colon.
_HOST_PATTERN = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_](?:[A-Za-z0-9_.+\\-]*[A-Za-z0-9_.+-])?)@)?"
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[^\W-][\w.%-]*))"
    r"(?::(?P<slots>\d+))?"
)
_SLOTS_PATTERN = re.compile(r"\bslots\s*=\s*(\d+)")
#: ssh's timeout in seconds for connecting to a host.
CONNECT_SECONDS = 10
#: Timeouts in seconds of a check: for connecting (ssh's limit plus the time to start Python), and in total.
_REACH_SECONDS, _CHECK_SECONDS = CONNECT_SECONDS + 5.0, 28.0
#: Timeouts in seconds for ending a job's processes, and for the hosts' states (a login can take several seconds).
_SWEEP_SECONDS, _STATE_SECONDS = 10.0, 8.0
#: Seconds after which a host is queried again. Every query is a login, and a page that shows the list repeats it.
QUERY_SECONDS = 30.0
#: Seconds before a host that refused a login is tried again; repeated failed logins often lock an account.
_DENIED_SECONDS = 300.0
#: Seconds of idle time after which a broken connection is reported as a host that does not respond.
_MAX_IDLE_SECONDS = 3.0
#: The exit code of ssh itself when it fails.
_SSH_FAILED = 255
#: Seconds between two polls for the exit of ssh, and the timeout for its remaining error output.
_POLL_SECONDS, _ERRORS_SECONDS = 0.01, 0.2


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
    """Return the hosts in order; the slots of a repeated host are added. Raises InvalidSpec, which names the entry."""
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


#: The last known state of each host, with the monotonic time at which it expires.
_states: dict[tuple[Host, SshOptions], tuple[float, NodeInfo]] = {}


class SshCluster(AgentCluster):
    """Runs ranks on SSH hosts."""

    name = "ssh"
    title = "SSH hosts"
    Options = SshOptions
    has_queue = True
    has_slots = True

    def unavailable(self, options: SshOptions) -> str:
        """Return the remedy if ssh is missing or no host is listed."""
        if shutil.which("ssh") is None:
            return "ssh is not installed. Install the OpenSSH client, for example: apt-get install openssh-client"
        try:
            parse_hosts(options)
        except InvalidSpec as error:
            return str(error)
        return ""

    def process_count_per_node(self, options: SshOptions, *, use_gpu: bool | None) -> int:
        """Return the minimum slots of the listed hosts, else the minimum GPUs of the hosts that are up, else 1."""
        slots = [host.slots for host in parse_hosts(options) if host.slots]
        if slots or use_gpu is False:
            return min(slots, default=1)
        return max(1, min((node.gpus for node in self.list_nodes(options) if node.state == "up"), default=1))

    def validate(self, options: SshOptions) -> None:
        """Raise InvalidSpec for invalid options, or if they name no hosts."""
        parse_hosts(options)

    def suggestions(self) -> dict[str, list[str]]:
        """Return the hosts of the user's ssh configuration."""
        return {"hosts": list_configured_hosts()}

    def detail(self, options: SshOptions) -> str:
        """Return the number of hosts."""
        try:
            return plural(len(parse_hosts(options)), "host")
        except InvalidSpec:
            return ""

    def list_nodes(self, options: SshOptions, timeout: float = _STATE_SECONDS) -> list[NodeInfo]:
        """Return the hosts in order with their last known state, within ``timeout`` seconds. Raises InvalidSpec."""
        hosts, started_at = parse_hosts(options), time.monotonic()
        expired_hosts = {host.name: host for host in hosts if _states.get((host, options), (0.0,))[0] <= started_at}
        with connect_temporarily(list(expired_hosts.values()), options, timeout) as (connections, unreachable):
            responses = query_all([(connection, dict[str, Any]()) for connection in connections], "facts", timeout)
        answers = dict(zip((connection.host for connection in connections), responses, strict=True))
        for name, answer in (answers | {error.host: error for error in unreachable}).items():
            lifetime = QUERY_SECONDS
            if isinstance(answer, HostFailed):
                node = NodeInfo(name, "down", answer.reason)
                lifetime = _DENIED_SECONDS if answer.code == "unreachable-denied" else lifetime
            else:
                gpus, load = answer.get("gpus") or [], answer.get("load")
                node = NodeInfo(
                    name,
                    gpus=len(gpus),
                    gpu_name=str(gpus[0]["name"]) if gpus else "",
                    cores=int(answer.get("cores") or 0),
                    python=str((answer.get("python") or {}).get("version", "")),
                    load=None if load is None else round(load, 1),
                    ranks=answer.get("ranks"),
                )
            _states[expired_hosts[name], options] = time.monotonic() + lifetime, node
        return [_states[host, options][1] for host in hosts]

    def run_checks(
        self, options: SshOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[NodeCheck]:
        """Connect to every host and check the requirements of jobs, within 30 s. Raises InvalidSpec."""
        deadline = time.monotonic() + _CHECK_SECONDS
        hosts = parse_hosts(options)
        with connect_temporarily(hosts, options, _REACH_SECONDS) as (connections, unreachable):
            # Use the remaining time for the hosts that have responded.
            seconds = min(checkup.CHECK_SECONDS, deadline - time.monotonic())
            result = checkup.check_hosts(connections, unreachable, options, modules, programs, seconds=seconds)
        for host in hosts:
            _states.pop((host, options), None)  # the user may have fixed the host
        return list(result.checks)

    def preview(self, spec: JobSpec, options: SshOptions) -> Placement:
        """Place ranks on the hosts in their order; interfaces and GPUs are unknown without a connection."""
        hosts, _spare_hosts = select_hosts(spec, options)
        return Placement(build_rank_slots(spec, [host.name for host in hosts]), address="", ports=(), interface="")

    # start ------------------------------------------------------------------------------------

    def _connect(self, spec: JobSpec, options: SshOptions, context: Context) -> tuple[JobSpec, list[ReachError]]:
        """Connect to the hosts. After a restart, spare hosts replace lost ones, or the job starts on fewer hosts."""

        def reach(hosts: Sequence[Host]) -> list[ReachError]:
            """Connect to hosts; return the unreachable ones."""
            count = plural(len(hosts), "host")
            context.report("stage", f"connecting to {count}")
            connections, unreachable = reach_all(
                hosts,
                options,
                spec.python,
                report=lambda done: context.report("stage", f"connected to {done} of {count}"),
            )
            self._connections += connections
            return unreachable

        hosts, spare_hosts = select_hosts(spec, options)
        unreachable = reach(hosts)
        if unreachable and spare_hosts and context.restart:
            count = len(self._connections)
            reach(spare_hosts[: len(unreachable)])
            for connection in self._connections[count:]:
                text = f"{unreachable.pop(0).host} is no longer reachable. {connection.host} replaces it."
                context.note(RunNotice("warning", text, "spare-host"))
        if unreachable and len(self._connections) >= (context.min_node_count or len(hosts)):
            return dataclasses.replace(spec, node_count=len(self._connections)), []
        return spec, unreachable

    def _make_nodes(self, job: StagedJob, placement: Placement, context: Context) -> AgentNodes:
        """Return the hosts, with a handle for ``sweep``: the connection options and folders."""
        hosts = [
            {
                "name": node.host,
                "target": node.connection.target.target,
                "folder": node.folder,
                "shared": node.is_shared,
            }
            for node in self._nodes
        ]
        handle = {"hosts": hosts, "python": job.options.python or job.spec.python}
        handle |= {"ssh_config": job.options.ssh_config, "directory": job.options.directory}
        return AgentNodes(job, placement, context, self._nodes, handle)

    # after the supervisor has ended -----------------------------------------------------------------

    def sweep(self, job_id: str, handle: dict[str, Any]) -> list[str]:
        """Kill the processes of a job on its hosts. Agents that lose their supervisor also do so within seconds.

        Returns the host of each killed process. Raises LaunchFailed, which lists the hosts that do not respond.
        """
        options = SshOptions(**{name: handle.get(name, "") for name in ("ssh_config", "python", "directory")})
        hosts = [Host(str(host["name"]), str(host["target"])) for host in handle.get("hosts") or []]
        with connect_temporarily(hosts, options, _REACH_SECONDS) as (connections, unreachable):
            requests = [(connection, {"job": job_id, "base": options.directory}) for connection in connections]
            responses = query_all(requests, "sweep", _SWEEP_SECONDS)
        if failures := [*unreachable, *(response for response in responses if isinstance(response, HostFailed))]:
            text = f"{listing([error.host for error in failures])} cannot be reached: {failures[0].reason}"
            hint = f"Ranks on these hosts stop on their own. {failures[0].remedy}".strip()
            raise LaunchFailed(text, code="hosts-unreachable", hint=hint)
        answers = zip(connections, responses, strict=True)
        return [item.host for item, answer in answers if isinstance(answer, dict) for _ in range(int(answer["killed"]))]


# connections --------------------------------------------------------------------------------------


class SshLink(Link):
    """A process such as ssh that is connected to the agent on a host; ``variables`` is its environment."""

    def __init__(self, name: str, argv: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start the process. Raises OSError. Must not be called on the event loop of the links."""
        super().__init__()
        self._name = name
        start = self._start(argv, variables)
        asyncio.run_coroutine_threadsafe(start, get_loop()).result()

    async def _start(self, argv: Sequence[str], variables: Mapping[str, str]) -> None:
        loop = asyncio.get_running_loop()
        self._streams: Any  # its three streams are pipes
        make_protocol = functools.partial(SubprocessStreamProtocol, READ_BYTES, loop)
        start = loop.subprocess_exec(make_protocol, *argv, env=variables, start_new_session=True)
        self._process, self._streams = await start
        self._errors = asyncio.create_task(self._collect_errors())

    async def _collect_errors(self) -> None:
        with contextlib.suppress(OSError):
            while content := await self._streams.stderr.read(READ_BYTES):
                self.add_errors(content)

    @property
    def code(self) -> int | None:
        """The exit code of the process, or None while it runs."""
        return self._process.get_returncode()

    async def read(self) -> bytes:
        """Return the next output of the process."""
        content: bytes = await self._streams.stdout.read(READ_BYTES)
        return content

    async def write(self, content: bytes) -> None:
        """Write to the standard input of the process."""
        self._streams.stdin.write(content)
        await self._streams.stdin.drain()

    def close_input(self) -> None:
        """Close the standard input of the process; idempotent."""
        self._streams.stdin.close()

    async def end(self, grace: float = 0.0) -> None:
        """Wait for the process to exit; kill it after ``grace`` seconds."""
        deadline = time.monotonic() + grace
        while self.code is None:
            if time.monotonic() >= deadline:
                self._process.kill()
            await asyncio.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """Close the streams of the process."""
        self._errors.cancel()
        self._process.close()

    async def explain_end(self, idle_seconds: float) -> str:
        """Return why the output ended, ``idle_seconds`` after the last byte."""
        await self.end(2.0)
        # A child of ssh may keep standard error open.
        await asyncio.wait([self._errors], timeout=_ERRORS_SECONDS)
        if self.code != _SSH_FAILED:
            return f"The agent on {self._name} exited with code {self.code}{self.last_line}."
        if idle_seconds > _MAX_IDLE_SECONDS:
            return f"No response from {self._name} for {idle_seconds:.0f} s."
        return f"Lost the connection to {self._name}{self.last_line}."


def reach_all(
    hosts: Sequence[Host],
    options: SshOptions,
    python: str = "",
    *,
    seconds: float = math.inf,
    report: Callable[[int], object] = bool,
) -> tuple[list[Connection], list[ReachError]]:
    """Start agents in parallel; return the connections, and the errors of the other hosts, in their order.

    ``python`` is the interpreter to use if the options set none. A host that does not answer within ``seconds`` is
    unreachable. ``report`` is called with the number of completed hosts; an exception that it raises ends the wait.
    """
    path = options.python or python or sys.executable
    stdin = environment.build_first_input(path, options.directory or DEFAULT_DIRECTORY, [str(options.patience_seconds)])
    config = os.path.expanduser(options.ssh_config) if options.ssh_config else ""  # noqa: PTH111
    connections, errors = list[Connection](), list[ReachError]()
    for host in hosts:
        try:
            link = SshLink(host.name, build_agent_command(host, config), environment.select_for_ssh())
        except OSError as error:
            text = f"Cannot start ssh: {error.strerror or error}."
            errors.append(ReachError(host.name, "ssh-missing", text, "Install the OpenSSH client on this machine."))
            continue
        connections.append(Connection(host, link, stdin, user_command=build_user_command(host, options.ssh_config)))

    def explain_failure(connection: Connection, output: str, code: int | None) -> ReachError:
        return explain(connection.target, options.ssh_config, path, output, code)

    connections, failures = start_agents(connections, explain_failure, seconds, report)
    return connections, errors + failures


@contextlib.contextmanager
def connect_temporarily(
    hosts: Sequence[Host], options: SshOptions, seconds: float
) -> Iterator[tuple[list[Connection], list[ReachError]]]:
    """Connect to hosts temporarily; yield the connections within ``seconds`` and the errors of the other hosts."""
    connections, unreachable = reach_all(hosts, options, seconds=seconds)
    try:
        yield connections, unreachable
    finally:
        with ThreadPoolExecutor(max(1, len(connections))) as pool:
            list(pool.map(Connection.close, connections))


# the command line of ssh and the causes of its failures ---------------------------------------------
# Only keys and key agents are used, never passwords, and host keys must be known. The program that starts the agent is
# sent over standard input, so the command line reveals nothing about the job.

_SETTINGS = {
    # Options that older versions of ssh do not support.
    "IgnoreUnknown": "StdinNull,SessionType,ForkAfterAuthentication",
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "UpdateHostKeys": "no",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "ConnectTimeout": str(CONNECT_SECONDS),
    "ConnectionAttempts": "1",
    "ServerAliveInterval": "3",  # seconds; ssh detects a dead connection after two intervals
    "ServerAliveCountMax": "2",
    "ControlMaster": "no",
    "ControlPath": "none",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "StdinNull": "no",
    "SessionType": "default",
    "ForkAfterAuthentication": "no",
    "LogLevel": "ERROR",
}
#: Starts Python from any login shell, including csh and fish, because the single-quoted text contains no single quote,
#: "!" or line break. ``read`` reads one line of standard input and leaves the rest for Python.
_START_COMMAND = (
    "exec sh -c '"
    'IFS= read -r p; case "$p" in "~/"*) p="$HOME/${p#??}";; esac; '
    'command -v "$p" >/dev/null 2>&1 || { echo "distdl: no python: $p" >&2; exit 127; }; '
    'exec "$p" -c "import sys;exec(bytes.fromhex(sys.stdin.buffer.raw.readline().decode()))"'
    "'"
)


def build_agent_command(host: Host, ssh_config: str = "") -> list[str]:
    """Return the command that starts an agent on ``host``. Its input is ``build_first_input``, then frames."""
    settings = [argument for name, value in _SETTINGS.items() for argument in ("-o", f"{name}={value}")]
    return ["ssh", "-T", *(["-F", ssh_config] if ssh_config else []), *settings, "--", host.target, _START_COMMAND]


def build_user_command(host: Host, ssh_config: str) -> str:
    """Return the command with which a user connects to a host: ``ssh -F lab.conf gpu1``."""
    return shlex.join(["ssh", *(["-F", ssh_config] if ssh_config else []), host.target])


def explain(host: Host, ssh_config: str, python: str, output: str, code: int | None) -> ReachError:
    """Return the reason why no agent started, from the output of ssh, the login shell and Python."""
    ssh = build_user_command(host, ssh_config)
    command = re.search(r"ssh-keygen -f \S+ -R \S+", output)
    values = {"ssh": ssh, "target": host.target, "python": python}
    values["forget"] = command[0] if command else f"ssh-keygen -R {host.name}"
    for pattern, (kind, message, remedy) in CAUSES.items():
        if match := re.search(pattern, output, re.IGNORECASE | re.MULTILINE):
            groups = ["", *((group or "").strip().rstrip(".") for group in match.groups())]
            return ReachError(host.name, kind, message.format(*groups, **values), remedy.format(*groups, **values))
    last_line = f"{text}." if (text := format_last_line(output)) else ""
    if code is None or code == _SSH_FAILED:
        message = f"ssh failed{last_line or ' without a message.'}"
        return ReachError(host.name, "ssh", message, f"Try the connection in a terminal: {ssh} true")
    message = f"The login shell exited with code {code}{last_line or ' and did not start the agent.'}"
    return ReachError(host.name, "shell", message, f"Fix the login shell so that this prints ok: {ssh} echo ok")


_KEY_CHANGED = "The host key has changed. Another machine may be impersonating the host."
_RENEW_KEY = "Ask the administrator. If the key was renewed, run {forget}, then {ssh} true"
_LOAD_KEY = "If the key has a passphrase, load it with ssh-add. Otherwise copy a key to the host: ssh-copy-id {target}"
#: Causes of an unreachable host: pattern of the output, kind, message, and remedy; both texts may use pattern groups.
#: The first match counts, because ssh also reports a failed verification if a key has changed.
CAUSES = {
    r"HOST IDENTIFICATION HAS CHANGED|host key .* (has changed|revoked)": ("changed-key", _KEY_CHANGED, _RENEW_KEY),
    r"No \S+ host key is known for|Host key verification failed": (
        "unknown-key",
        "The host key is not known on this machine.",
        "Run {ssh} true once, and compare the fingerprint with the output of ssh-keygen -lf "
        "/etc/ssh/ssh_host_ed25519_key.pub on the host.",
    ),
    r"Permissions \d+ for '([^']+)' are too open": (
        "denied",
        "ssh does not use the key {1}, because other users can read it.",
        "Run: chmod 600 {1}",
    ),
    r"Permission denied|Too many authentication failures": ("denied", "The host rejected all SSH keys.", _LOAD_KEY),
    r"Could not resolve hostname ([^:\s]+)": (
        "name",
        "The host name {1} cannot be resolved.",
        "Correct the name, or set its address as HostName in ~/.ssh/config.",
    ),
    r"connect to host \S+ port (\d+): Connection refused": (
        "refused",
        "The host refused the connection on port {1}.",
        "Start sshd on the host, or set its port in ~/.ssh/config.",
    ),
    r"Connection timed out|Operation timed out|timed out during banner|Timeout, server": (
        "timeout",
        "The host does not respond.",
        "Check that the host is on and reachable: {ssh} true",
    ),
    r"connect to host \S+ port \d+: (No route to host|Network is unreachable)": (
        "route",
        "No route to the host ({1}).",
        "Check the network of this machine: {ssh} true",
    ),
    r"^distdl: no python: (.*)$": (
        "python",
        "Python was not found at {1}.",
        "Install the same environment on the host, or set the option 'python' to the path of its Python.",
    ),
    r"^distdl: old python|has no attribute 'fromhex'|AttributeError: 'file' object": (
        "old-python",
        "Python at {python} is older than 3.11.",
        "Install a newer Python on the host, or set the option 'python' to its path.",
    ),
    r"^distdl: (?:no folder|not ours): (.*)$": (
        "folder",
        "Jobs cannot use their folder on the host: {1}.",
        "Set the option 'directory' to a folder of your own.",
    ),
    r"^(.*Bad configuration option.*|Can't open user config file.*)$": (
        "ssh",
        "ssh cannot read its configuration: {1}.",
        "Correct that file, or the option 'ssh_config'.",
    ),
    r"^(.*account is currently not available.*|.*nologin.*)$": (
        "shell",
        "The account on the host does not allow logins: {1}.",
        "Ask for an account with a shell, so that this prints ok: {ssh} echo ok",
    ),
}
