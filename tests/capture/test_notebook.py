"""Which notebook and which cell it is."""

import pytest

from distdl_jupyter.capture import here


def test_nothing_is_known_without_a_shell():
    assert here().path == ""
    assert here().folder is None


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("__session__", "/work/a/quickstart.ipynb", "quickstart.ipynb"),
        ("__session__", "RTC:json:notebook:a/b.ipynb", "b.ipynb"),
        ("__vsc_ipynb_file__", "/home/me/c.ipynb", "c.ipynb"),
        ("__session__", "/work/console-1-abc", ""),
        ("__session__", None, ""),
    ],
)
def test_the_notebooks_name(notebook, monkeypatch, variable, value, name):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    notebook.shell.user_ns[variable] = value
    assert here().name == name


def test_the_environment_says_it_too(notebook, monkeypatch, tmp_path):
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "n.ipynb"))
    assert here().path == str(tmp_path / "n.ipynb")
    assert here().folder == tmp_path


def test_the_running_cell_is_the_newest_input(notebook):
    notebook.run("x = 1")
    notebook.run("from distdl_jupyter.capture import here\nplace = here()")
    assert notebook["place"].execution_count == 2
    assert notebook["place"].raw.startswith("from distdl_jupyter")
