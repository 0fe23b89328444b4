"""A process with a Spark session, as a notebook's kernel has one: it submits a job there and says what came of it."""

import json
import sys
import time

from pyspark.sql import SparkSession

from distdl_jupyter import submit
from tests.clusters import functions

name, settings = sys.argv[1], json.loads(sys.argv[2])
builder = SparkSession.builder
for key, value in settings.items():
    builder = builder.config(key, value) if key != "remote" else builder.remote(value)
spark = builder.getOrCreate()
job = submit(getattr(functions, name), compute_target="spark", node_count=2, distributed_backend="torch")
print(json.dumps({"job": job.id}), flush=True)
view = job.wait(240).view()
left = time.monotonic()
rows = spark.range(0, 100, 1, 4).count()
print(json.dumps({"state": view.state.value, "reason": view.reason, "hosts": [rank.host for rank in view.ranks],
                  "notes": [note["code"] for note in view.notes], "rows": rows,
                  "seconds": time.monotonic() - left}), flush=True)  # fmt: skip
