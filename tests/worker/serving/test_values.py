import pickle
import threading

import pytest

from distdl_jupyter.worker.masking import MASK
from distdl_jupyter.worker.serving import shown, values


class Broken:
    def __repr__(self):
        raise ValueError("no text")


class Rich:
    def __repr__(self):
        return "rich"

    def _repr_html_(self):
        return "<i>rich</i>"

    def _repr_png_(self):
        return b"\x89PNG"

    def _repr_svg_(self):
        raise RuntimeError("not now")


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "text", [1, {"a": 2}], b"x" * 1000])
def test_values_are_pickled_whole(value):
    data, why = values.packed(value)
    assert why == ""
    assert pickle.loads(data) == value


def test_a_value_of_the_rank_itself_travels_by_its_class():
    data, why = values.packed(Rich())
    assert why == ""
    assert repr(pickle.loads(data)) == "rich"


def test_the_limit_is_kept_without_making_the_whole_pickle():
    assert values.packed(b"x" * 100, most=50) == (
        b"",
        "The value is bytes of more than 0 MB, so only its text is returned. End the cell with a part of it, or write "
        "it to a file.",
    )


def test_what_cannot_be_pickled_is_told_with_its_reason():
    data, why = values.packed(threading.Lock())
    assert data == b""
    assert why.startswith("The value is lock, which cannot be pickled (TypeError: cannot pickle '_thread.lock' object)")


def test_forms_are_those_of_a_notebook():
    assert shown.bundle(Rich()) == {"text/plain": "rich", "text/html": "<i>rich</i>", "image/png": "iVBORw=="}
    assert shown.bundle(None) == {}
    assert shown.bundle(Rich) == {"text/plain": repr(Rich)}


def test_a_text_that_fails_is_the_types_name():
    assert shown.bundle(Broken())["text/plain"]
    assert values.text(Broken())


def test_large_containers_are_shortened_before_they_are_written_out():
    assert len(shown.bundle(list(range(10**6)))["text/plain"]) < 500


def test_secrets_of_the_environment_are_masked(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "abcdef123456")
    assert shown.bundle({"key": "abcdef123456"})["text/plain"] == f"{{'key': '{MASK}'}}"
