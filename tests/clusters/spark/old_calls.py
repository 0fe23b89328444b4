"""A process with a Spark session whose user calls what Databricks and Horovod have, ours beside PySpark's own."""

import json
import sys

from pyspark.ml.torch.distributor import TorchDistributor as PySparks
from pyspark.sql import SparkSession

from distdl_jupyter.compat.horovod import HorovodRunner
from distdl_jupyter.compat.horovod import spark as horovod_spark
from distdl_jupyter.compat.pyspark import TorchDistributor
from tests.clusters.functions import trains


def total(start):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.tensor([float(start + dist.get_rank())])
    dist.all_reduce(value)
    return float(value)


if __name__ == "__main__":
    builder = SparkSession.builder
    for key, value in json.loads(sys.argv[1]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    print(json.dumps({
        "ours": TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(total, 1),
        "theirs": PySparks(num_processes=2, local_mode=False, use_gpu=False).run(total, 1),
        "runner": HorovodRunner(np=2).run(trains),
        "horovod.spark": horovod_spark.run(trains, num_proc=2),
        "rows": spark.range(0, 100, 1, 4).count(),
    }))  # fmt: skip
