"""The accelerators and fast networks of this host, asked without importing a framework or touching a device.

A GPU that is divided (MIG) counts as its parts, each of which serves one process.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_INFINIBAND = Path("/sys/class/infiniband")
#: The version of the kernel's NVIDIA driver (sysfs, ABI/stable/sysfs-module: MODULE_VERSION).
_DRIVER = Path("/sys/module/nvidia/version")
#: Seconds for nvidia-smi; without its persistence mode it wakes the driver first, which takes seconds.
_TIMEOUT = 8.0
#: Lines of ``nvidia-smi -L``: a GPU, and a part of the one above.
_WHOLE = re.compile(r"GPU (\d+): (.*) \(UUID: ([^)]+)\)")
_PART = re.compile(r"\s+(MIG \S+)\s+Device\s+\d+: \(UUID: ([^)]+)\)")


class Gpu(NamedTuple):
    """One GPU, or a part of one. ``word`` is what ``CUDA_VISIBLE_DEVICES`` calls it, ``uuid`` no other device has."""

    number: int
    word: str
    uuid: str
    name: str


def gpus() -> list[Gpu]:
    """Return the NVIDIA GPUs of this host, [] for none.

    Parts of divided ones are numbered after the others, or from 0 where every GPU is divided. Raises OSError or
    subprocess.SubprocessError when the driver does not answer.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    answer = subprocess.run(
        [program, "-L"], capture_output=True, text=True, timeout=_TIMEOUT, check=True, stdin=subprocess.DEVNULL
    )
    return list(_numbered(answer.stdout.splitlines()))


def _numbered(lines: Iterable[str]) -> Iterator[Gpu]:
    found: list[tuple[Gpu, list[Gpu]]] = []
    for line in lines:
        if match := _WHOLE.fullmatch(line.rstrip()):
            found.append((Gpu(int(match[1]), match[1], match[3], match[2]), []))
        elif (match := _PART.fullmatch(line.rstrip())) and found:
            whole, parts = found[-1]
            parts.append(Gpu(0, match[2], match[2], f"{whole.name} ({match[1]})"))
    undivided = [gpu for gpu, parts in found if not parts]
    yield from undivided
    first = max((gpu.number for gpu in undivided), default=-1) + 1
    for number, part in enumerate((part for _, parts in found for part in parts), first):
        yield part._replace(number=number)


def driver() -> str:
    """Return the version of the NVIDIA driver, "" where there is none or it does not say."""
    try:
        return _DRIVER.read_text().strip()
    except OSError:
        return ""


def named(visible: str, present: Sequence[tuple[str, str]]) -> dict[int, str]:
    """Return the places among the devices ``present`` (index, UUID) that ``CUDA_VISIBLE_DEVICES`` names, with its word.

    A word is an index, or a UUID or its beginning, as CUDA reads it; one that is neither names nothing.
    """
    found: dict[int, str] = {}
    for word in filter(None, map(str.strip, visible.split(","))):
        for at, (index, uuid) in enumerate(present):
            if word == index if word.isdigit() else word.startswith(("GPU-", "MIG-")) and uuid.startswith(word):
                found.setdefault(at, word)
                break
    return found


def given(found: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """Return those of the GPUs that a scheduler has given, as ``CUDA_VISIBLE_DEVICES`` names them (None: all)."""
    if visible is None:
        return list(found)
    chosen = named(visible, [(gpu.word, gpu.uuid) for gpu in found])
    return [found[at]._replace(word=word) for at, word in chosen.items()]


def in_words(variables: Mapping[str, str], found: Sequence[Gpu]) -> dict[str, str]:
    """Return those of a rank's variables that hold numbers of GPUs, with the words that CUDA knows them by."""
    words = {str(gpu.number): gpu.word for gpu in found}
    return {
        name: ",".join(words.get(number, number) for number in variables[name].split(","))
        for name in ("CUDA_VISIBLE_DEVICES", "DISTDL_GPU")
        if variables.get(name)
    }


def infiniband() -> list[str]:
    """Return the InfiniBand (or RoCE) devices that have a port in the state ACTIVE."""
    devices = sorted(_INFINIBAND.iterdir()) if _INFINIBAND.is_dir() else []
    return [device.name for device in devices if _is_active(device)]


def _is_active(device: Path) -> bool:
    return any("ACTIVE" in state.read_text() for state in device.glob("ports/*/state"))
