"""The first program on a host: what it runs there is its own, whatever else lies in the folder."""

import os
import sys

import pytest

from distdl_jupyter.clusters import environment, ssh
from distdl_jupyter.clusters.environment import build_package
from tests.clusters.agents.links import GPU1, log_in


def begin(base):
    """Let the program run with its package and no request; return how it ended."""
    return log_in(environment.build_first_input(sys.executable, str(base), []) + build_package().content)


def trouble(base):
    done = begin(base)
    return ssh.explain(GPU1, "", sys.executable, done.stderr.decode(), done.returncode)


@pytest.mark.fault("disk", "no other file is removed from a folder that the user named")
def test_nothing_else_in_the_folder_is_removed(tmp_path):
    """The folder is the user's own choice, as ``~/work``, in which ``lib`` may be anybody's."""
    others = [tmp_path / "lib" / name / "distdl_jupyter" for name in ("0123456789abcdef", "python3.12")]
    for folder in others:
        folder.mkdir(parents=True)
        os.utime(folder.parent, (0, 0))
    begin(tmp_path)
    assert (tmp_path / "lib" / build_package().digest / "distdl_jupyter" / "__init__.py").exists()
    assert all(folder.exists() for folder in others)


def planted(base):
    """Put code in the place of the package, as who can write there would."""
    package = base / "lib" / build_package().digest / "distdl_jupyter" / "node"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "__main__.py").write_text(f"open({str(base / 'ran')!r}, 'w')\n")
    return package.parents[1]


def test_code_that_others_may_have_changed_is_not_run(tmp_path):
    planted(tmp_path).chmod(0o777)
    told = trouble(tmp_path)
    assert not (tmp_path / "ran").exists()
    assert "is writable by others" in told.reason
    assert "option 'directory'" in told.remedy


def test_a_link_in_the_place_of_the_package_is_not_followed(tmp_path):
    (tmp_path / "base" / "lib").mkdir(parents=True)
    (tmp_path / "base" / "lib" / build_package().digest).symlink_to(planted(tmp_path))
    assert "is a link" in trouble(tmp_path / "base").reason
    assert not (tmp_path / "ran").exists()


@pytest.mark.fault("entry", "code of another user in a shared folder is not run")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("below", ["", "lib", f"lib/{build_package().digest}"])
def test_code_of_another_user_is_not_run(tmp_path, below):
    planted(tmp_path)
    os.chown(tmp_path / below, 4321, 4321)
    told = trouble(tmp_path)
    assert not (tmp_path / "ran").exists()
    assert told.reason.startswith(f"Jobs cannot use their folder on the host: {tmp_path / below} ".rstrip("/"))
    assert "belongs to another user (uid 4321)" in told.reason


def test_a_folder_that_others_may_write_is_refused_and_one_with_the_sticky_bit_is_none(tmp_path):
    tmp_path.chmod(0o777)
    assert "is writable by others" in trouble(tmp_path).reason
    assert not (tmp_path / "lib").exists()
    tmp_path.chmod(0o1777)
    begin(tmp_path)
    assert (tmp_path / "lib" / build_package().digest).exists()


def test_a_library_that_was_open_to_others_is_closed(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib").chmod(0o777)
    begin(tmp_path)
    assert (tmp_path / "lib").stat().st_mode & 0o077 == 0o055
    assert (tmp_path / "lib" / build_package().digest).exists()
