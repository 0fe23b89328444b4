"""A process with a Spark session, as a notebook's kernel has one, whose jobs read DataFrames, and what they saw."""

import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path

from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

from distdl_jupyter import attach, submit
from distdl_jupyter.core.errors import DataUnavailable, DistDLError
from distdl_jupyter.storage import access, manifest


def rows_of_each_epoch(epochs=2):
    """Return (number of steps, [(id, x, vector) of each row] of each epoch) of this rank."""
    from distdl_jupyter import shard

    found = []
    for epoch in range(epochs):
        data = shard("train", 8, seed=epoch)
        found.append(
            [
                (int(row), float(x), vector.tolist())
                for batch in data
                for row, x, vector in zip(*map(batch.get, ("id", "x", "v")), strict=True)
            ]
        )
    return len(data), found


def refusal(where, **options):
    """Return the sentence with which ``data=`` is refused, "" when it is not."""
    try:
        submit(rows_of_each_epoch, data=where, process_count_per_node=2, **options).cancel()
    except DistDLError as error:
        return str(error)
    return ""


def folders(source):
    """Return the names of the folders beside the one of a source."""
    if not source.stored:
        return sorted(path.name for path in Path(source.path).parent.iterdir())
    parent = dataclasses.replace(source, prefix=source.prefix.rpartition("/")[0])
    try:
        held = manifest.listed(access.account(source.account), parent) if source.account else manifest.found(parent)
    except DataUnavailable as error:
        assert "contains no files" in str(error)  # noqa: PT017 - not a test
        return []
    return sorted({item.name.removeprefix(f"{parent.prefix}/").partition("/")[0] for item in held.items})


if __name__ == "__main__":
    place, settings, target = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows = [(number, number / 7, Vectors.dense([number, -1.0])) for number in range(101)]
    few = spark.createDataFrame(rows, ["id", "x", "v"])
    # Three rows are there twice: those of a limit() would be others each time that executors work the plan out.
    frame = few.union(few.where("id < 3")).repartition(5)
    expected = Counter((row.id, row.x, tuple(row.v)) for row in frame.collect())
    where = (frame, place) if place else frame
    try:
        job = submit(rows_of_each_epoch, data={"train": where}, **target)
    except DataUnavailable as error:
        print(json.dumps({"refused": str(error)}))
        sys.exit()
    source = job.spec.data[0]
    results = job.results(timeout=600)
    rows, log = job.spec.data[0].rows, [line.text for line in job.logs() if line.text.startswith("train: ")]
    again = submit(rows_of_each_epoch, (1,), data=job.spec.data, process_count_per_node=1)
    total = sum(len(epochs[0]) for _, epochs in again.results(timeout=600))
    kept = folders(source)
    job.remove()
    still = folders(source)
    attach(again.id).remove()
    print(json.dumps({
        "steps": [steps for steps, _ in results],
        "exact": [Counter((row, x, tuple(v)) for _, epochs in results for row, x, v in epochs[epoch]) == expected
                  for epoch in (0, 1)],
        "rows": rows,
        "log": log,
        "again": total,
        "folders": [len(kept), kept == still, folders(source)],
        "none named": refusal({"train": frame}) if place else "",
        "no folder": refusal({"train": (frame, "/nowhere")}),
        "store": refusal({"train": (frame, "https://host/prefix")}),
        "few": refusal({"train": (frame.limit(1), place) if place else frame.limit(1)}),
        "none": refusal({"train": (frame.limit(0), place) if place else frame.limit(0)}),
        "after": folders(source),
    }))  # fmt: skip
    spark.stop()
