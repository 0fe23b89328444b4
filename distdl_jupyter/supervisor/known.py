"""Which secret values a supervisor knows: of the job's variables, of its own environment, of a script's arguments."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.redact import Redactor, hidden
from distdl_jupyter.worker.secretforms import MASK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder


def redactor(folder: JobFolder, spec: JobSpec, secret_variables: Mapping[str, str]) -> Redactor:
    """Return what masks them in all that is written of the job."""
    return Redactor.of(os.environ, {**secret_variables, **hidden(spec.script_arguments, _arguments(folder, spec))})


def _arguments(folder: JobFolder, spec: JobSpec) -> list[Any]:
    """Return the script's true arguments, which stand with its code; none when the spec masks none of them."""
    if not any(MASK in word for word in spec.script_arguments):
        return []
    try:
        found = json.loads((folder.path / "payload.json").read_text(encoding="utf-8")).get("arguments")
    except (OSError, ValueError, AttributeError):
        return []
    return found if isinstance(found, list) else []
