"""An earlier job's files as the code of a new one."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from typing import TYPE_CHECKING

from distdl_jupyter.core.errors import InvalidSpec, JobNotFound
from distdl_jupyter.core.words import plural, size

if TYPE_CHECKING:
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder


class EarlierCode:
    """What an earlier job ran."""

    def __init__(self, folder: JobFolder, spec: JobSpec) -> None:
        self._folder = folder
        self._spec = spec

    def write(self, folder: JobFolder) -> None:
        """Copy payload and modules. Raises JobNotFound when they are gone."""
        try:
            shutil.copy2(self._folder.path / "payload.json", folder.path / "payload.json")
            if self._folder.payload.exists():
                shutil.copy2(self._folder.payload, folder.payload)
            shutil.copytree(self._folder.code, folder.code, dirs_exist_ok=True)
        except OSError as error:
            raise JobNotFound(
                f"The code of job {self._folder.id} cannot be read: {error.strerror or error}.",
                hint="Submit it from its notebook again.",
            ) from error

    def heading(self) -> str:
        """Return count and size of the names."""
        if not self._spec.captured:
            return f"as in {self._folder.id}"
        bytes_ = sum(one.size for one in self._spec.captured)
        return f"{plural(len(self._spec.captured), 'name')}, {size(bytes_)}, as in {self._folder.id}"

    def summary(self) -> str:
        """Return where the values are from."""
        return self.heading()


def again(folder: JobFolder, id_: str) -> tuple[JobSpec, dict[str, str], EarlierCode]:
    """Return spec, secret values and code of a job that repeats the one in ``folder``.

    Secret values come from this process's environment. Raises InvalidSpec when one is missing, JobNotFound.
    """
    earlier = folder.spec()
    missing = [name for name in earlier.secret_variables if name not in os.environ]
    if missing:
        raise InvalidSpec(
            f"{', '.join(missing)} was given to job {folder.id} and is kept nowhere.", field="environment_variables",
            hint="Set it in the environment of this process, or submit the job from its notebook again.",
        )  # fmt: skip
    spec = dataclasses.replace(earlier, id=id_, created=time.time(), capture_seconds=0.0)
    return spec, {name: os.environ[name] for name in earlier.secret_variables}, EarlierCode(folder, earlier)
