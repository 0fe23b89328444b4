from distdl_jupyter.worker import serving
from distdl_jupyter.worker.secret_patterns import MASK


class Rich:
    def __repr__(self):
        return "rich"

    def _repr_html_(self):
        return "<i>rich</i>"

    def _repr_png_(self):
        return b"\x89PNG"

    def _repr_svg_(self):
        raise RuntimeError("not now")


def test_forms_are_those_of_a_notebook():
    assert serving.make_bundle(Rich()) == {"text/plain": "rich", "text/html": "<i>rich</i>", "image/png": "iVBORw=="}
    assert serving.make_bundle(None) == {}
    assert serving.make_bundle(Rich) == {"text/plain": repr(Rich)}


def test_large_containers_are_shortened_before_they_are_written_out():
    assert len(serving.make_bundle(list(range(10**6)))["text/plain"]) < 500


def test_secrets_of_the_environment_are_masked(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "abcdef123456")
    assert serving.make_bundle({"key": "abcdef123456"})["text/plain"] == f"{{'key': '{MASK}'}}"
