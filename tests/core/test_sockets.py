"""Where processes of one user meet: a folder that nobody else may enter, a path that a socket takes."""

import os
import stat

import pytest

from distdl_jupyter.core import machine
from distdl_jupyter.core.errors import DistDLError


def test_a_folder_that_others_could_enter_is_closed_to_them(tmp_path):
    folder = tmp_path / "distdl"
    folder.mkdir()
    folder.chmod(0o755)
    assert stat.S_IMODE(machine.make_private_folder(folder).stat().st_mode) == 0o700
    assert stat.S_IMODE(machine.make_private_folder(tmp_path / "new").stat().st_mode) == 0o700


def test_what_is_somebody_else_s_or_no_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(DistDLError, match="belongs to another user"):
        machine.make_private_folder(tmp_path / "link")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(DistDLError, match="belongs to another user"):
        machine.make_private_folder(tmp_path)


@pytest.mark.parametrize(("length", "inside"), [(10, True), (200, False)])
def test_a_socket_lies_in_jupyters_folder_unless_its_path_would_be_too_long(tmp_path, monkeypatch, length, inside):
    runtime = tmp_path / ("r" * length) if not inside else tmp_path.parents[-2] / ("r" * length)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(runtime))
    path = machine.get_socket_path("ranks")
    assert path.is_relative_to(runtime) == inside
    assert len(os.fsencode(path)) <= 103
    assert path.name.startswith("ranks-")
