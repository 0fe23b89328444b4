"""TensorFlow's workers meet, on this machine, and train one model."""

import json
import textwrap

import pytest

from distdl_jupyter.api.submit_process import submit_source
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.plan import Placement, RankSlot
from distdl_jupyter.core.registry import load_backend
from distdl_jupyter.core.spec import JobSpec
from tests.written import events_of

FIT = """
    import os
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = int(os.environ["RANK"])
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
        model.compile(optimizer="sgd", loss="mse")
    x = tf.random.stateless_normal((64, 4), seed=(1, rank))
    data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, 1, keepdims=True))).batch(16).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    model.fit(data.with_options(options), epochs=2, steps_per_epoch=4, verbose=0)
    {"workers": strategy.num_replicas_in_sync, "weights": model.get_weights()[0].ravel().tolist()}
"""


def plan(*places, processes=2):
    made, options = load_backend("tensorflow", {})
    spec = JobSpec(id="i", name="n", node_count=1, process_count_per_node=processes, distributed_backend="tensorflow")
    return made.plan(spec, Placement(places, "10.0.0.1", (), "eth0", cores_per_rank=3), options)


def submit(code, **options):
    return submit_source(textwrap.dedent(code).strip(), options={"distributed_backend": "tensorflow", **options})


def test_every_rank_is_a_worker_at_a_port_of_its_own_node():
    made = plan(RankSlot(0, 0, "a", 0, address="10.0.0.1", ports=(20_001,)),
                RankSlot(1, 1, "b", 0, address="10.0.0.2", ports=(20_007,)))  # fmt: skip
    told = [json.loads(environment["TF_CONFIG"]) for environment in made.environments]
    assert [one["cluster"] for one in told] == [{"worker": ["10.0.0.1:20001", "10.0.0.2:20007"]}] * 2
    assert [one["task"] for one in told] == [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}]
    assert [environment["TF_NUM_INTRAOP_THREADS"] for environment in made.environments] == ["3", "3"]
    assert made.distribution == "tensorflow"
    assert "CUDA_VISIBLE_DEVICES" not in made.environments[0]


def test_a_worker_sees_its_own_gpu_alone():
    made = plan(*(RankSlot(rank, 0, "a", rank, gpu=rank, address="10.0.0.1", ports=(1,)) for rank in range(2)))
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment in made.environments] == ["0", "1"]


def test_a_place_without_ports_for_its_ranks_is_refused():
    with pytest.raises(InvalidSpec, match="cannot reserve a port for every rank"):
        plan(RankSlot(0, 0, "a", 0))


@pytest.mark.timeout(400)
@pytest.mark.readme("tensorflow")
def test_fit_of_keras_2_trains_one_model_on_two_emulated_nodes_and_its_curve_arrives():
    job = submit(FIT, node_count=2).wait(300)
    results = job.results()
    assert [one["workers"] for one in results] == [2, 2]
    assert results[0]["weights"] == results[1]["weights"]
    view = job.view()
    assert {rank.rank: rank.host for rank in view.ranks} == {0: "node-0", 1: "node-1"}
    steps = job.metrics().sort_values("step")
    losses = {rank: steps[steps["rank"] == rank]["loss"].tolist() for rank in range(2)}
    assert len(losses[0]) == 8, "one for each batch"
    assert losses[0] == losses[1], "what Keras reports is the mean over the workers"
    assert losses[0][-1] < losses[0][0]
    statuses = [event["status"] for event in events_of(job.folder) if event["type"] == "rank"]
    assert statuses.count("ready") == 2
    assert [(row.step, row.rank) for row in job.time().rows] == [(step, rank) for step in range(8) for rank in (0, 1)]
