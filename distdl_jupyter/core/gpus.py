"""Which NVIDIA GPUs this process may use, asked without importing a framework or touching a device.

A GPU that is divided (MIG) counts as its parts, each of which serves one process.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from distdl_jupyter.host import devices as host_devices

_WHOLE = re.compile(r"GPU (\d+): (.*) \(UUID: ([^)]+)\)")
_PART = re.compile(r"\s+(MIG \S+)\s+Device\s+\d+: \(UUID: ([^)]+)\)")


class Gpu(NamedTuple):
    """One GPU, or a part of one. ``word`` is what ``CUDA_VISIBLE_DEVICES`` calls it, ``uuid`` no other device has."""

    number: int
    word: str
    uuid: str
    name: str


@functools.cache
def devices() -> tuple[Gpu, ...]:
    """Return the GPUs that ranks may use: those of nvidia-smi, limited by CUDA_VISIBLE_DEVICES."""
    present = tuple(_present())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    named = host_devices.named(chosen, [(gpu.word, gpu.uuid) for gpu in present])
    return tuple(present[at]._replace(word=word) for at, word in named.items())


def visible() -> list[int]:
    """Return their numbers."""
    return [gpu.number for gpu in devices()]


def name(found: Sequence[Gpu] | None = None) -> str:
    """Return the model of the first of the GPUs, ``devices()`` or those ``found``; "" without any."""
    return next((gpu.name for gpu in (devices() if found is None else found)), "")


def in_words(variables: Mapping[str, str], found: Sequence[Gpu] | None = None) -> dict[str, str]:
    """Return those of a rank's variables that hold numbers of GPUs, with the words that CUDA knows them by.

    The GPUs are ``devices()`` or those ``found``: to ask takes a process.
    """
    words = {str(gpu.number): gpu.word for gpu in (devices() if found is None else found)}
    return {
        name: ",".join(words.get(number, number) for number in variables[name].split(","))
        for name in ("CUDA_VISIBLE_DEVICES", "DISTDL_GPU")
        if variables.get(name)
    }


def _present() -> Iterator[Gpu]:
    """Yield all GPUs; the parts of divided ones are numbered behind them, or from 0 where every GPU is divided."""
    gpus: list[tuple[Gpu, list[Gpu]]] = []
    for line in _asked():
        if found := _WHOLE.fullmatch(line):
            gpus.append((Gpu(int(found[1]), found[1], found[3], found[2]), []))
        elif (found := _PART.fullmatch(line)) and gpus:
            whole, parts = gpus[-1]
            parts.append(Gpu(0, found[2], found[2], f"{whole.name} ({found[1]})"))
    undivided = [gpu for gpu, parts in gpus if not parts]
    yield from undivided
    first = max((gpu.number for gpu in undivided), default=-1) + 1
    for number, part in enumerate((part for _, parts in gpus for part in parts), first):
        yield part._replace(number=number)


def _asked() -> list[str]:
    """Return what ``nvidia-smi -L`` says, [] where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.rstrip().splitlines()
