"""The names of frameworks, for rooms that know none: packages, modules and files. Nothing of them is imported."""

#: Distributions whose versions a rank tells.
OF_RANKS = ("torch", "horovod", "tensorflow", "keras", "lightning", "pytorch_lightning", "transformers", "numpy")
#: Distributions that talk to each other over the network, so one version must run everywhere.
TALKING = frozenset(("torch", "horovod", "tensorflow", "ray"))
#: Modules that must not be forked, or say so, and those whose import a rank is to refuse at the right moment.
NOT_FORKED = (
    "tensorflow", "keras", "tf_keras", "jax", "jaxlib", "grpc", "ray", "pyspark", "horovod.tensorflow",
    "horovod.keras", "horovod._keras", "antigravity", "this",
)  # fmt: skip
#: Files in which ranks wait for each other, and how people call the module.
MEETING = (("horovod/", "hvd"), ("torch/distributed/", "torch.distributed"), ("deepspeed/comm/", "deepspeed.comm"))
