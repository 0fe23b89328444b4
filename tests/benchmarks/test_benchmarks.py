"""That each benchmark can be run alone, and that README has what was measured; nothing here measures."""

import importlib

import pytest

from tests.benchmarks import results


@pytest.mark.parametrize("name", results.BENCHMARKS)
def test_a_benchmark_can_be_run_alone(name):
    module = importlib.import_module(f"tests.benchmarks.{name}")
    assert callable(module.measure)
    assert f"python -m tests.benchmarks.{name}" in module.__doc__, "its docstring says how to run it"


def test_what_readme_claims_was_measured():
    readme, page = results.README.read_text(), results.PAGE.read_text()
    assert results.with_claims(readme, page) == readme
