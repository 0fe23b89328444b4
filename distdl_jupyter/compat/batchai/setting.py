"""What a Batch AI job says of its surroundings: image, packages, machine, time. Little of it is needed here."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from datetime import timedelta
from importlib import metadata
from typing import Any

from distdl_jupyter.azure import successors
from distdl_jupyter.azure.vm_sizes import find
from distdl_jupyter.compat.batchai import document
from distdl_jupyter.compat.batchai.commandline import packages
from distdl_jupyter.compat.batchai.record import HIDDEN, Imported
from distdl_jupyter.core.errors import InvalidSpec

_DURATION = re.compile(r"(?:(\d+)(?: days?, |\.))?(\d+):(\d\d):(\d\d)(?:\.\d+)?")
_ISO = re.compile(r"P(?=.)(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
#: Fields that are read elsewhere.
_READ = (
    "$schema", "name", "cluster", "nodeCount", "jobPreparation", "containerSettings", "inputDirectories",
    "mountVolumes", "outputDirectories", "stdOutErrPathPrefix", "environmentVariables", "secrets", "constraints",
    *document.TOOLKITS,
)  # fmt: skip


def machines(fields: Mapping[str, Any], cluster: Mapping[str, Any], found: Imported) -> None:
    """Take name and cluster."""
    if name := fields.get("name"):
        found.options["name"] = str(name)
        found.say("name", name, "name of the job")
    if told := fields.get("cluster"):
        said = str(told.get("id", told) if isinstance(told, Mapping) else told).rpartition("/")[2]
        found.say("cluster", said, "Batch AI's clusters are gone; compute_target= names one of yours", "ignored")
    if size := cluster.get("vmSize"):
        found.say("cluster: vmSize", size, _vm_size(str(size)), "changed")


def software(fields: Mapping[str, Any], found: Imported) -> None:
    """Take the preparation and the container."""
    if line := str(fields.get("jobPreparation", {}).get("commandLine", "")):
        found.say("jobPreparation", line, f"nothing is installed when a job starts{_packages(line)}", "ignored")
    settings = fields.get("containerSettings", {})
    registry = settings.get("imageSourceRegistry", {})
    if image := registry.get("image"):
        version = ".".join(map(str, sys.version_info[:3]))
        became = f"ranks run in this environment (Python {version}); on Azure ML environment= names an image of today"
        found.say("containerSettings: image", image, became, "ignored")
    if registry.get("credentials"):
        found.say("containerSettings: credentials", HIDDEN, "no image is fetched", "ignored")
    if size := settings.get("shmSize"):
        found.say("containerSettings: shmSize", size, "there is no container; ranks have the machine's", "ignored")


def _packages(line: str) -> str:
    try:
        wanted = packages(line)
    except InvalidSpec:
        return ""
    absent = [name for name in wanted if not _installed(name)]
    if absent:
        return f"; not installed here: {', '.join(absent)} (pip install {' '.join(absent)})"
    there = ", ".join(f"{name} {_installed(name)}" for name in wanted)
    return f"; {there} {'is' if len(wanted) == 1 else 'are'} here already" if there else ""


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def rest(fields: Mapping[str, Any], found: Imported) -> None:
    """Take the limit of time, and say of every other field that it is left out."""
    if limit := fields.get("constraints", {}).get("maxWallClockTime"):
        _limit(str(limit), found)
    if reported := [name for name in fields if name in document.REPORTED]:
        found.say(", ".join(reported), "", "Batch AI's own words about a job that it had taken", "ignored")
    for name, value in fields.items():
        if name == "schedulingPriority":
            found.say(name, value, "there is no queue of priorities here", "ignored")
        elif name not in _READ and name not in document.REPORTED:
            found.say(name, "", "no field of a Batch AI job of 2018-05-01", "ignored")


def _limit(text: str, found: Imported) -> None:
    seconds = _seconds(text)
    if seconds is None:
        found.say("constraints: maxWallClockTime", text, "it cannot be read as a duration", "ignored")
    else:
        found.options["max_run_duration_seconds"] = seconds
        found.say("constraints: maxWallClockTime", text, f"max_run_duration_seconds={seconds:g}")


def _seconds(text: str) -> float | None:
    """Return the seconds of ``7 days, 0:00:00``, ``7.00:00:00`` or ``P7D``, None for another text."""
    found = _DURATION.fullmatch(text) or _ISO.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds() or None


def _vm_size(name: str) -> str:
    try:
        size = find(name)
    except InvalidSpec:
        return "the catalogue has no such size"
    next_ = successors.successor_of(size)
    if next_ is None:
        return f"{size.size} is not retired; vm_size= names a size for advice"
    return f"retired; today {next_.size.size}: {next_.reason}"
