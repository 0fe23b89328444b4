"""Where processes of one user meet: a folder that nobody else may enter, a path that a socket takes."""

import os

import pytest

from distdl_jupyter import permissions
from distdl_jupyter.core import machine


def test_what_is_somebody_else_s_or_no_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="is a link or a file, not a folder"):
        permissions.make_private(tmp_path / "link")
    if os.getuid() == 0:
        os.chown(tmp_path, 54321, -1)  # files of root are trusted
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        permissions.make_private(tmp_path)


@pytest.mark.parametrize(("length", "inside"), [(10, True), (200, False)])
def test_a_socket_lies_in_jupyters_folder_unless_its_path_would_be_too_long(tmp_path, monkeypatch, length, inside):
    runtime = tmp_path / ("r" * length) if not inside else tmp_path.parents[-2] / ("r" * length)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(runtime))
    path = machine.get_socket_path("ranks")
    assert path.is_relative_to(runtime) == inside
    assert len(os.fsencode(path)) <= 103
    assert path.name.startswith("ranks-")
