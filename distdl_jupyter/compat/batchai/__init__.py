"""Jobs of Azure Batch AI (ended 2019-03-31), run here: ``submit(batchai_job="job.json")``, ``explain("job.json")``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter.compat.batchai.explained import Explanation
from distdl_jupyter.compat.batchai.reading import read
from distdl_jupyter.compat.batchai.record import Imported
from distdl_jupyter.core.names import override

if TYPE_CHECKING:
    from distdl_jupyter.capture import Draft
    from distdl_jupyter.compat.batchai.document import JobFile

__all__ = ["Explanation", "Imported", "draft", "explain", "read"]


def explain(
    job: JobFile, *, cluster: JobFile | None = None, batchai_mounts: Mapping[str, Any] | None = None
) -> Explanation:
    """Return what each field of a Batch AI job becomes, as a table; nothing is started.

    ``job`` is the path of a job.json or its content as a dict. ``cluster`` is the path of the cluster's parameters
    (``cluster.json`` beside the job's file is found by itself). ``batchai_mounts`` says where the files of a mount are
    now: ``{"nfs": "shared:/mnt/nfs", "scripts": "./scripts"}``. Raises InvalidSpec when it is no Batch AI job.
    """
    return Explanation(read(job, cluster=cluster, batchai_mounts=batchai_mounts).rows)


def draft(
    job: JobFile,
    *,
    cluster: JobFile | None = None,
    batchai_mounts: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Draft, dict[str, Any]]:
    """Return a Batch AI job as captured code, and the options of ``submit`` that it stands for.

    Takes what ``explain`` takes. ``options`` given beside it win; environment variables are added to the job's own.
    Raises InvalidSpec that names what is missing.
    """
    from distdl_jupyter.capture import capture_script

    found = read(job, cluster=cluster, batchai_mounts=batchai_mounts)
    if found.problems:
        raise found.problems[0]
    assert found.script is not None, "a job without a script has a problem"
    captured = capture_script(found.script, found.directory, list(found.arguments))
    payload = {**captured.payload_json, "layout": found.layout}
    made = dataclasses.replace(captured, payload_json=payload, secret_variables=frozenset(found.secrets))
    return made, _together(found.options, options or {})


def _together(read_: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    found = override(read_, given)
    for name in ("environment_variables", "env"):
        if isinstance(given.get(name), Mapping):
            found[name] = {**read_.get("environment_variables", {}), **given[name]}
    return found
