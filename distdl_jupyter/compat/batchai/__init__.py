"""Jobs of Azure Batch AI (ended 2019-03-31), run here: ``submit(batchai_job="job.json")``, ``explain("job.json")``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter.compat.batchai.conversion import read
from distdl_jupyter.compat.batchai.explanation import Explanation, ImportedJob
from distdl_jupyter.core.aliases import override

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.compat.batchai.job_file import JobFile

__all__ = ["Explanation", "ImportedJob", "draft", "explain", "read"]


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
) -> tuple[CapturedCode, dict[str, Any]]:
    """Return a Batch AI job as captured code, and the options of ``submit`` that it stands for.

    Takes what ``explain`` takes. ``options`` given beside it win; environment variables are added to the job's own.
    Raises InvalidSpec that names what is missing.
    """
    from distdl_jupyter.capture import capture_script

    imported = read(job, cluster=cluster, batchai_mounts=batchai_mounts)
    if imported.problems:
        raise imported.problems[0]
    assert imported.script is not None, "a job without a script has a problem"
    captured = capture_script(imported.script, imported.directory, list(imported.arguments))
    payload = {**captured.payload_json, "layout": imported.layout}
    code = dataclasses.replace(captured, payload_json=payload, secret_variables=frozenset(imported.secrets))
    options = options or {}
    merged = override(imported.options, options)
    for name in ("environment_variables", "env"):
        if isinstance(options.get(name), Mapping):
            merged[name] = {**imported.options.get("environment_variables", {}), **options[name]}
    return code, merged
