"""Keras 3 under Horovod by one other import: all ranks train one model, the one of a single process on all the data."""

import importlib.util
import textwrap

import pytest

from distdl_jupyter.api.submit_process import submit_source

HERE = all(importlib.util.find_spec(name) for name in ("keras", "horovod", "torch"))
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not HERE, reason="not installed: keras, horovod or torch"), pytest.mark.timeout(300),
]  # fmt: skip

TRAINS = """
    import keras, numpy as np
    import distdl_jupyter.compat.horovod.keras as hvd
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    x = np.random.default_rng(0).random((32, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    own = slice(hvd.rank(), None, hvd.size())
    model = keras.Sequential([keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
    begin = {begin}
    if begin is not None:
        model.build((None, 4))
        if hvd.rank() == 0:
            model.set_weights([np.array(one, "float32") for one in begin])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), "mse")
    history = model.fit(x[own], y[own], batch_size=32 // hvd.size(), epochs=4, verbose=0, shuffle=False, callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])
    {{"weights": [one.tolist() for one in model.get_weights()], "losses": history.history["loss"],
      "optimizer": type(model.optimizer).__name__, "backend": keras.backend.backend()}}
"""
BEGIN = [[[0.1 * (a + b) for b in range(3)] for a in range(4)], [0.1] * 3, [[0.2], [0.3], [0.4]], [0.0]]


def train(ranks, *, backend="torch", begin=None, controller="horovod-gloo"):
    code = textwrap.dedent(TRAINS).strip().format(begin=begin)
    job = submit_source(code, options={
        "distributed_backend": controller, "process_count_per_node": ranks,
        "environment_variables": {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
    })  # fmt: skip
    return job.results(timeout=240)


def close(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a == pytest.approx(b, abs=1e-5) if isinstance(a[0], float) else close(a, b) is None


def test_two_ranks_train_the_model_that_one_process_trains_on_all_of_the_data():
    first, second = train(2, begin=BEGIN)
    (alone,) = train(1, begin=BEGIN)
    assert (first["optimizer"], first["backend"]) == ("Adam", "torch")
    assert first["weights"] == second["weights"]
    close(first["weights"], alone["weights"])
    assert first["losses"] == second["losses"] == pytest.approx(alone["losses"], abs=1e-5)


def test_a_model_that_is_built_by_its_first_batch_begins_alike_on_all_ranks():
    first, second = train(2)
    assert first["weights"] == second["weights"]
    assert first["losses"] == second["losses"]


def test_the_learning_rate_is_raised_over_the_first_epochs():
    code = """
        import keras, numpy as np
        import distdl_jupyter.compat.horovod.keras as hvd
        hvd.init()
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.8)), "mse")
        seen = []
        class Sees(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                seen.append(round(float(self.model.optimizer.learning_rate), 6))
        x = np.ones((4, 2), "float32")
        model.fit(x, x[:, :1], batch_size=2, epochs=3, verbose=0, callbacks=[
            hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2), Sees()])
        seen
    """
    job = submit_source(textwrap.dedent(code).strip(), options={
        "distributed_backend": "horovod-gloo", "process_count_per_node": 2,
        "environment_variables": {"KERAS_BACKEND": "torch"},
    })  # fmt: skip
    assert job.results(timeout=240) == [[0.4, 0.5, 0.6, 0.7, 0.8, 0.8]] * 2


def test_a_backend_of_keras_that_horovod_does_not_know_is_refused_in_one_sentence():
    from distdl_jupyter import JobFailed

    if importlib.util.find_spec("jax") is None:
        pytest.skip("not installed: jax")
    with pytest.raises(JobFailed, match="KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch"):
        train(1, backend="jax")
