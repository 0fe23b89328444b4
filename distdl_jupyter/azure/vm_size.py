"""One GPU size of Azure's virtual machines as a value, with its numbers written for people."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from fractions import Fraction

from distdl_jupyter.core.humanize import TIMES

PREFIX = "Standard_"
ML_QUOTA, VM_QUOTA = "Azure Machine Learning", "virtual machines"
#: What ``VmSize.gpu`` finds in a model's full name: "NVIDIA Tesla V100 (NVLink)" -> "V100".
_SHORT_GPU = re.compile(r"RTX PRO \d+|MI\d+X|GB\d+|[AHKPTV]\d+")


def gpu_in(text: str) -> str:
    """Return the model's short word in a name (``H200`` in ``ND96isr_H200_v5``), "" where there is none."""
    found = _SHORT_GPU.search(text)
    return found.group() if found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """vCPUs of a family of sizes that a subscription uses in a region, of those it may use (None: without limit).

    ``service`` is "Azure Machine Learning" or "virtual machines", whose quotas are separate; so are those of low
    priority.
    """

    service: str
    used: int
    limit: int | None
    low_priority: bool = False

    @property
    def left(self) -> int | None:
        """How many may still be used; None without a limit."""
        return None if self.limit is None else max(0, self.limit - self.used)

    @property
    def text(self) -> str:
        """Return it in words: ``0 of 24 vCPUs used (Azure Machine Learning)``."""
        kind = f"{self.service}, low priority" if self.low_priority else self.service
        of = "" if self.limit is None else f" of {self.limit:,}"
        return f"{self.used:,}{of} vCPUs used ({kind})"


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSize:
    """One size. ``None`` or ``""`` means that no source stated it.

    ``gpu_count`` is exact: ``Fraction(1, 6)`` where a size holds a share of a GPU. ``gpu_memory_gib`` is per GPU (of
    the share, where it is one). Rates are in Gb/s; ``infiniband_gbps_per_gpu`` and ``..._per_vm`` are one direction.
    """

    name: str
    series: str
    gpu_model: str
    gpu_count: Fraction
    gpu_memory_gib: int | None
    vcpus: int | None
    ram_gib: int | None
    #: True, False, or None where no page says it.
    nvlink: bool | None
    nvlink_detail: str
    infiniband: bool | None
    fabric: str
    infiniband_gbps_per_gpu: int | None
    infiniband_gbps_per_vm: int | None
    ethernet_gbps: float | None
    temp_disk_gib: int | None
    local_nvme: str
    local_nvme_encrypted: bool | None
    #: "retired", "no retirement listed", "GA" or "".
    status: str
    status_date: date | None
    retirement_date: date | None
    #: Size or series that Azure's own migration guide names, with the page.
    azure_successor: str
    azure_successor_source: str
    source: str
    notes: str
    #: Why the subscription cannot rent it in the region that was asked about, "" when it can or nobody asked.
    restriction: str = ""
    zones: tuple[str, ...] = ()
    quotas: tuple[Quota, ...] = ()
    #: (field, who says so) of values that are not from the row's own pages.
    origins: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> str:
        """Return the name as Azure's interfaces take it: ``Standard_NC96ads_A100_v4``."""
        return PREFIX + self.name

    @property
    def gpu(self) -> str:
        """Return the model's short word: ``A100``, ``T4``, ``RTX PRO 6000``."""
        return gpu_in(self.gpu_model) or self.gpu_model or "GPU"

    @property
    def whole_gpus(self) -> int:
        """Return how many ranks can own a GPU of this size; a share of a GPU serves one."""
        return max(1, int(self.gpu_count))

    @property
    def retired(self) -> bool:
        """Whether it can no longer be rented in public regions."""
        return self.status == "retired"

    @property
    def nvidia(self) -> bool:
        """Whether its GPUs run CUDA and NCCL."""
        return self.gpu_model.startswith("NVIDIA")

    @property
    def arm_host(self) -> bool:
        """Whether its processor is an Arm one, for which x86 packages do not run."""
        return self.notes.startswith("Arm host")

    @property
    def gpus_text(self) -> str:
        """Return count and model: ``4 x A100``."""
        return f"{self.gpu_count} {TIMES} {self.gpu}"

    @property
    def memory_text(self) -> str:
        """Return the memory of each GPU: ``80 GB``, or ``not stated``."""
        return "not stated" if self.gpu_memory_gib is None else f"{self.gpu_memory_gib} GB"

    @property
    def fabric_text(self) -> str:
        """Return InfiniBand's generation and rate as far as they are known: ``HDR 8 x 200 Gb/s``, ``FDR``."""
        if not self.infiniband:
            return ""
        inside = re.search(r"\((\w+)\)", self.fabric)
        generation = inside.group(1) if inside else self.fabric.split(" CX")[0]
        words = [generation if generation != "InfiniBand" else "", self._infiniband_rate()]
        return " ".join(filter(None, words))

    def _infiniband_rate(self) -> str:
        per_gpu, per_vm = self.infiniband_gbps_per_gpu, self.infiniband_gbps_per_vm
        if per_gpu and per_vm:
            return f"{per_vm // per_gpu} {TIMES} {per_gpu} Gb/s"
        return f"{per_vm} Gb/s" if per_vm else ""

    @property
    def ethernet_text(self) -> str:
        """Return the Ethernet rate: ``80 Gb/s``, or "" where none is stated."""
        return "" if self.ethernet_gbps is None else f"{self.ethernet_gbps:g} Gb/s"

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the pages that this row was read from, and who else told some of its values."""
        pages = tuple(part.strip() for part in self.source.split("; ") if part.strip())
        return (*pages, *self.origin_texts)

    @property
    def origin_texts(self) -> tuple[str, ...]:
        """Return who told values that are not from the row's own pages, and which those are."""
        others = dict.fromkeys(who for _, who in self.origins)
        return tuple(f"{who}: {', '.join(name for name, by in self.origins if by == who)}" for who in others)

    @property
    def quota(self) -> Quota | None:
        """Return the quota that a training job meets: that of Azure Machine Learning, else that of machines."""
        own = [one for one in self.quotas if not one.low_priority]
        return next((one for one in own if one.service == ML_QUOTA), own[0] if own else None)
