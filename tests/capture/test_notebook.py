"""Which notebook and which cell it is."""

import pytest

from distdl_jupyter.capture import current_location


def test_nothing_is_known_without_a_shell():
    assert current_location().path == ""
    assert current_location().folder is None


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
    assert current_location().name == name


def test_the_environment_says_it_too(notebook, monkeypatch, tmp_path):
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "n.ipynb"))
    assert current_location().path == str(tmp_path / "n.ipynb")
    assert current_location().folder == tmp_path


def test_the_running_cell_is_the_newest_input(notebook):
    notebook.run("x = 1")
    notebook.run("from distdl_jupyter.capture import current_location\nplace = current_location()")
    assert notebook["place"].execution_count == 2
    assert notebook["place"].raw.startswith("from distdl_jupyter")
