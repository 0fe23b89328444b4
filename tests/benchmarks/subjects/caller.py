"""Stands for a notebook's kernel in the peers' environment: it has imported a launcher and calls it when asked.

    python caller.py notebook_launcher|spark|ray|ipyparallel

Reads a line ``FUNCTION ARGUMENT...`` on its input for each call, calls ``launch(FUNCTION of the subjects, arguments)``
and answers with one line of JSON: when the call began (wall clock), and what went wrong. It says ``ready`` first, when
all is imported and the launcher's own session, where it has one, is up. Must import nothing of this project.
"""

import contextlib
import importlib
import json
import os
import socket
import sys
import time
import traceback

RANKS = 2


def notebook_launcher():
    """accelerate's, which forks the ranks from this process."""
    import torch  # noqa: F401 - as in a notebook whose earlier cells have used it
    from accelerate import notebook_launcher

    return lambda function, arguments: notebook_launcher(function, arguments, num_processes=RANKS)


def spark():
    """TorchDistributor in local mode, with a session that is up."""
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    SparkSession.builder.master(f"local[{RANKS}]").config("spark.ui.enabled", "false").getOrCreate()
    return lambda function, arguments: TorchDistributor(RANKS, local_mode=True, use_gpu=False).run(function, *arguments)


def ray():
    """Ray Train's TorchTrainer on a Ray that is up."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2 * RANKS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    def launch(function, arguments):
        run = RunConfig(storage_path=os.environ["BENCH_SCRATCH"])
        TorchTrainer(
            lambda: function(*arguments), scaling_config=ScalingConfig(num_workers=RANKS), run_config=run
        ).fit()

    return launch


def ipyparallel():
    """Engines that start for the call; what they run meets by the variables that torch asks for."""
    import first
    import ipyparallel

    def launch(function, arguments):
        with ipyparallel.Cluster(n=RANKS, log_level=40) as engines:
            port = free_port()
            for rank in engines.ids:
                engines[rank].apply_sync(first.place, rank, RANKS, port)
            engines[:].apply_sync(function, *arguments)

    return launch


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


LAUNCHERS = {one.__name__: one for one in (notebook_launcher, spark, ray, ipyparallel)}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    launch = LAUNCHERS[sys.argv[1]]()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        place, *arguments = json.loads(line)
        module, _, name = place.partition(":")
        function = getattr(importlib.import_module(module), name)
        error, began = "", time.time()
        try:
            launch(function, tuple(arguments))
        except BaseException:  # noqa: BLE001 - told to who asked
            error = traceback.format_exc()
        print(json.dumps({"began": began, "error": error}), file=answers, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
