"""Every backend holds the contract of all backends."""

from distdl_jupyter.testing import BackendContract


class TestPlain(BackendContract):
    label = "plain"
    ranks = 1


class TestTorch(BackendContract):
    label = "torch"


class TestHorovodGloo(BackendContract):
    label = "horovod-gloo"


class TestHorovodMpi(BackendContract):
    label = "horovod-mpi"
    ranks = 2


class TestTensorFlow(BackendContract):
    label = "tensorflow"


class TestRay(BackendContract):
    label = "ray"
    ranks = 1
