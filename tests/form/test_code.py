"""What is known of a training function is what is really there."""

from __future__ import annotations

import functools

import pytest

from distdl_jupyter.form.target import detect_backend, inspect_training


def plain(epochs: int = 3, batch_size: int = 32, lr: float = 0.01) -> None:
    """Train."""


def test_defaults_and_arguments_are_known() -> None:
    known = inspect_training(plain, (), {})
    assert (known.batch_size, known.learning_rate, known.learning_rate_is_argument) == (32, 0.01, True)
    known = inspect_training(plain, (5,), {"lr": 0.5})
    assert known.learning_rate == 0.5


def test_captured_numbers_are_known_but_are_no_arguments() -> None:
    def train() -> None: ...

    known = inspect_training(train, (), {}, numbers={"learning_rate": 0.1, "batch_size": 64.0})
    assert (known.batch_size, known.learning_rate) == (64, 0.1)
    assert known.learning_rate_name == "learning_rate"
    assert not known.learning_rate_is_argument


def test_an_argument_comes_before_a_variable_of_the_notebook() -> None:
    assert inspect_training(plain, (), {"lr": 0.5}, numbers={"lr": 0.1}).learning_rate == 0.5


@pytest.mark.parametrize("value", ["0.1", None, True, float("nan"), float("inf"), 0, -1])
def test_what_is_no_positive_number_is_unknown(value: object) -> None:
    def train(lr: object = value) -> None: ...

    assert inspect_training(train, (), {}).learning_rate is None


def test_things_that_are_no_plain_functions() -> None:
    assert inspect_training(functools.partial(plain, lr=0.2), (), {}).learning_rate == 0.2
    assert inspect_training(print, (), {}).batch_size is None
    wrong = inspect_training(plain, (1, 2, 3, 4, 5), {"lr": 1.0})
    assert wrong.learning_rate == 1.0


@pytest.mark.parametrize(
    "code",
    [
        "optimizer = SGD(net.parameters(), lr=lr * hvd.size())",
        "lr = lr*dist.get_world_size()",
        "learning_rate *= hvd.size()",
        "opt = Adam(lr=hvd.size() * base_lr)",
        "opt = SGD(lr=0.01 * 1, other=world_size * lr)",
    ],
)
def test_code_that_scales_its_learning_rate(code: str) -> None:
    assert inspect_training(plain, (), {}, code=code).scales_learning_rate


@pytest.mark.parametrize("code", ["lr = 0.1", "SGD(net, lr=lr)", "steps = len(data) // hvd.size()", "lr * 0.5"])
def test_code_that_does_not(code: str) -> None:
    assert not inspect_training(plain, (), {}, code=code).scales_learning_rate


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("import horovod.torch as hvd\nhvd.init()", "horovod"),
        ("dist.init_process_group('gloo')", "torch"),
        ("import torch.distributed as dist", "torch"),
        ("net.fit(x, y)", ""),
    ],
)
def test_the_backend_that_the_code_speaks_of(code: str, wanted: str) -> None:
    assert detect_backend(code) == wanted
