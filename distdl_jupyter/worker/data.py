"""Where a job's data sources are on the node of a rank: ``data_path("train")`` is a folder on its local disk.

The stager put it there before any rank started, and an environment variable names the folder; nothing is copied here.
"""

from __future__ import annotations

import os
from pathlib import Path

#: Prefix of every data source's variable; its name in capitals follows.
VARIABLE = "DISTDL_DATA_"


def data_path(name: str = "data") -> Path:
    """Return the path of a data source of this job on this node, a folder or a file.

    Raises LookupError outside a job, and if the job has no data source of this name.
    """
    path = os.environ.get(VARIABLE + name.upper())
    if path:
        return Path(path)
    if "DISTDL_JOB_ID" not in os.environ:
        raise LookupError(
            f"data_path({name!r}) works only in a job. Run the code with %%distributed or submit(), and add the source "
            f'there: data={{"{name}": "blob://account/container/prefix"}}.'
        )
    names = sorted(key.removeprefix(VARIABLE).lower() for key in os.environ if key.startswith(VARIABLE))
    known = f"The job has {', '.join(names)}." if names else "The job has none."
    raise LookupError(
        f"Unknown data source {name!r}. {known} Add sources with data= of submit(), or --data NAME=PLACE."
    )
