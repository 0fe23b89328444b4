"""How code that trains with a backend looks, and the packages that it uses, for the checks before a start."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from distdl_jupyter.core.machine import installed_version
from distdl_jupyter.worker.hooks import frameworks

if TYPE_CHECKING:
    from distdl_jupyter.core.source import Call, Code


@dataclass(frozen=True, slots=True)
class Usage:
    """How code that trains with a backend looks. Texts are Python; remedies are sentences."""

    #: What the ranks meet with, for people.
    title: str = ""
    #: Last words of the calls that let the ranks meet; empty where the backend does that itself.
    meets: tuple[str, ...] = ()
    #: The packages of those calls, where their last words alone do not say it.
    package: str | tuple[str, ...] = ""
    #: The call in full, as a cell would begin with it.
    call: str = ""
    #: Returns how code that imports these modules begins, for "Begin it with ...".
    begin: Callable[[Collection[str]], str] = lambda _imports: ""
    #: What those calls do on one process of a backend that is not made for them: they fail, or do nothing.
    alone: Literal["fails", "idle", ""] = ""
    #: Names of which one averages gradients, and what to do where none is used; empty: the backend averages.
    averages: tuple[str, ...] = ()
    average: str = ""
    #: Names of which one gives all ranks the same weights, and what to do where none is used; empty: not looked for.
    same_start: tuple[str, ...] = ()
    start: str = ""
    #: Libraries whose trainers average gradients and divide data.
    trainers: tuple[str, ...] = ()
    #: Whether those let the ranks meet, too.
    trainers_meet: bool = False
    #: The number of ranks, as code asks for it.
    world_size: str = ""
    #: A regular expression of source that speaks of the backend.
    words: str = ""

    def met(self, code: Code) -> Call | None:
        """Return the first call that lets the ranks meet."""
        calls = (call for call in code.calls if call.last in self.meets)
        return next((call for call in calls if call.name.startswith(self.package)), None)

    def written(self, call: Call) -> str:
        """Return such a call as people write it."""
        return self.call if self.package else f"{call.last}()"


@dataclass(frozen=True, slots=True)
class Package:
    """A package that jobs run with: its name for people, that of its distribution, and those that hold it as well.

    ``install`` is the subcommand of ``distdl`` that installs it, "" for one that pip alone installs.
    """

    title: str
    name: str
    also: tuple[str, ...] = ()
    install: str = ""

    def version(self) -> str:
        """Return the installed version, "" without one."""
        return installed_version(self.name, *self.also)


def listed(packages: Iterable[Package]) -> str:
    """Return packages with their versions: ``torch 2.13.0, DeepSpeed 0.19.8``. What is not installed is left out."""
    return ", ".join(f"{package.title} {version}" for package in packages if (version := package.version()))


TORCH = Package("torch", "torch")
TENSORFLOW = Package("TensorFlow", frameworks.TENSORFLOW[0], frameworks.TENSORFLOW[1:])

#: Two names of TensorFlow's class for several workers.
STRATEGY = ("MultiWorkerMirroredStrategy", "CollectiveAllReduceStrategy")
#: Libraries whose trainers let the ranks meet, average gradients and divide data.
TRAINERS = ("lightning", "pytorch_lightning", "accelerate", "transformers", "deepspeed", "composer", "fastai")


def may_share_gpus(variables: Mapping[str, str]) -> bool:
    """Return whether these variables let NCCL (2.32 or later) run several ranks on one GPU."""
    return variables.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") != "0"
