"""The folders that a job's ranks see on this node: links into the cache, so that they cost no space and no time."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from distdl_jupyter.node import permissions
from distdl_jupyter.node.staging.cache import SYMBOLIC, Cache
from distdl_jupyter.node.staging.failure import Failure

#: Disks that have no hard links say one of these; a file may also have too many.
_NO_LINKS = {errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class Tree:
    """The folders of one node, one for each source; what an earlier attempt left is taken away."""

    def __init__(self, cache: Cache, job: str, node: int) -> None:
        self._root = cache.staged / job / str(node)
        self._made: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._root)
        self._root.mkdir(parents=True, mode=0o700)

    def folder(self, source: str) -> str:
        """Return the folder of a source, made when it is not there."""
        return self._make(str(self._root / source))

    def add_folder(self, source: str, path: str) -> None:
        """Make a folder below a source's."""
        self._make(f"{self.folder(source)}/{path}")

    def add(self, source: str, path: str, file: str, final: str) -> None:
        """Link to ``file`` of the cache, which is or will be ``final``, as ``path`` below a source's folder.

        Raises FileNotFoundError when the file has gone, Failure when there is another one of that name.
        """
        place = f"{self.folder(source)}/{path}"
        self._make(place.rpartition("/")[0])
        try:
            os.link(file, place)
        except FileExistsError:
            raise Failure(
                f"The names of two blobs are the same on this disk: {path!r}.",
                "Rename one of them, or choose a folder on another disk.",
                source,
            ) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            (self._root / SYMBOLIC).touch()
            Path(place).symlink_to(final)

    def _make(self, folder: str) -> str:
        if folder not in self._made:
            Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
            self._made.add(folder)
        return folder


def forget(cache: Cache, job: str) -> None:
    """Take away the folders of a job on this machine; the cache stays. Raises OSError."""
    if permissions.is_own(cache.staged) and permissions.is_own(cache.staged / job):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(cache.staged / job)
