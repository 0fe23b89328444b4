"""Selects the submitter's variables for ranks: almost all on this machine, a few by name on other machines.

On another machine, the submitter's PATH, HOME or LD_LIBRARY_PATH is wrong; unneeded variables should stay private.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from distdl_jupyter.core import machine
from distdl_jupyter.core.plan import Placement, RankSlot
from distdl_jupyter.core.redact import is_secret

#: Prefixes of the variables of training libraries.
_PREFIXES = (
    "NCCL_", "HOROVOD_", "OMP_", "MKL_", "TORCH_", "PYTORCH_", "GLOO_", "UCX_", "FI_", "TF_", "KERAS_", "HF_",
    "TOKENIZERS_", "OMPI_MCA_", "PRTE_MCA_",
)  # fmt: skip
#: Makes all ranks iterate over sets in the same order. A job's environment_variables may set another seed.
HASH_SEED = {"PYTHONHASHSEED": "0"}
_NAMES = frozenset(("LANG", "LC_ALL", "TZ"))
#: Variables for ssh itself: its key agent, a Kerberos ticket, the location of its configuration.
_SSH_NAMES = ("PATH", "HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "KRB5CCNAME", "LANG")
#: Prefixes of the matplotlib backends that a kernel sets.
_NOTEBOOK_BACKENDS = ("module://matplotlib_inline", "module://ipykernel", "module://ipympl")
#: Names that every shell and exec accept.
_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def select_for_local_ranks(submitters: Mapping[str, str]) -> dict[str, str]:
    """Return the submitter's environment without the variables that no rank should inherit."""
    own_names = ("DISTDL_HOME", "DISTDL_CACHE", "DISTDL_WARM_DIR")
    environment = {n: value for n, value in submitters.items() if n in own_names or not n.startswith("DISTDL_")}
    if environment.get("MPLBACKEND", "").startswith(_NOTEBOOK_BACKENDS):
        del environment["MPLBACKEND"]  # the notebook's backend does not work in a rank
    environment.setdefault(*machine.get_compiler_cache())
    return environment | HASH_SEED


def select_for_remote_ranks(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are valid on another machine, except variables that look like secrets."""
    return {
        name: value
        for name, value in inherited.items()
        if (name in _NAMES or name.startswith(_PREFIXES))
        and not is_secret(name, value)
        and _NAME_PATTERN.fullmatch(name)
    }


def select_for_ssh(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of the ssh program; it is minimal so that ``SendEnv`` cannot leak variables."""
    environ = os.environ if environ is None else environ
    return {name: environ[name] for name in _SSH_NAMES if name in environ}


def build_rank_variables(placement: Placement, slot: RankSlot) -> dict[str, str]:
    """Return the ``DISTDL_`` variables of a rank, which the worker reads (``worker.identity``)."""
    identity = {
        "DISTDL_RANK": slot.rank,
        "DISTDL_WORLD_SIZE": len(placement.ranks),
        "DISTDL_LOCAL_RANK": slot.local_rank,
        "DISTDL_LOCAL_SIZE": placement.local_sizes[slot.node],
        "DISTDL_NODE_RANK": slot.node,
        "DISTDL_NODE_COUNT": placement.node_count,
        "DISTDL_HOST": slot.host,
    }
    if slot.gpu is not None:
        identity["DISTDL_GPU"] = slot.gpu
    return {name: str(value) for name, value in identity.items()}
