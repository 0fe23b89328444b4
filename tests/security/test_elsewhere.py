"""Secrets of jobs on other hosts: neither a command line nor a file there or here shows one."""

import fnmatch
import os
import sys
import time

import pytest

from distdl_jupyter import submit
from distdl_jupyter.core.errors import JobFailed
from tests.clusters.ssh.conftest import lab_of  # noqa: F401 - fixture
from tests.conftest import wait_for
from tests.hosts import needs_hosts
from tests.security import planted
from tests.slurm import needs_slurm, slurm, two_nodes  # noqa: F401 - fixtures

pytestmark = [pytest.mark.timeout(400), pytest.mark.full]
TIMEOUT = 240


def _tells(go):
    """Tell the secrets, wait until they are let go, and fail with them."""
    values = [os.environ[name] for name in ("HF_TOKEN", "MY_PASSWORD", "DATABASE_URL")]
    for value in values:
        print("plain", value, repr(value))
        print("plain", value, file=sys.stderr)
    print(f"got {planted.JWT} from login")
    print("here", flush=True)
    while not os.path.exists(go):
        time.sleep(0.05)
    raise ValueError(f"refused: {values}")


def look(job, go, home, *places):
    """Search everything while the ranks run, and once more when they have failed."""
    wait_for(lambda: sum(str(line) == "here" for line in job.logs()) == 2, TIMEOUT, "both ranks")
    assert [line for line in planted.command_lines() if planted.found_in(line)] == []
    assert [written_below(place) for place in places] == [{} for _ in places]
    go.touch()
    with pytest.raises(JobFailed) as caught:
        job.result(TIMEOUT)
    assert "refused" in str(caught.value)
    assert planted.found_in(f"{caught.value} {caught.value.traceback} {job.view()}") == []
    assert "\n".join(map(str, job.logs())).count("plain •••") == 12
    assert [written_below(place) for place in (home, *places)] == [{} for _ in (home, *places)]


def written_below(place):
    """Return what is found but in Slurm's own copy of a job's environment, which its administrator alone may read."""
    found = planted.written_below(place)
    own = [name for name in found if fnmatch.fnmatch(name, "state/hash.*/job.*/environment")]
    assert [name for name in own if (place / name).stat().st_mode & 0o077] == []
    return {name: what for name, what in found.items() if name not in own}


@needs_hosts
@pytest.mark.parametrize("backend", ["torch", "horovod-mpi"])
@pytest.mark.fault("entry", "on SSH hosts no file and no command line shows a secret")
def test_on_ssh_hosts(lab_of, distdl_home, tmp_path, backend):  # noqa: F811
    there = tmp_path / "there"
    lab = lab_of(2, directory=str(there), shared=False)
    job = lab.submit(_tells, (str(tmp_path / "go"),), distributed_backend=backend,
                     environment_variables=planted.VARIABLES)  # fmt: skip
    look(job, tmp_path / "go", distdl_home, there)


@needs_slurm
@pytest.mark.parametrize("backend", ["torch", "horovod-mpi"])
@pytest.mark.fault(
    "entry", "in Slurm no command line shows a secret, and no file but Slurm's own, which only its administrator reads"
)
def test_in_slurm(slurm, distdl_home, tmp_path, backend):  # noqa: F811
    job = submit(_tells, (str(tmp_path / "go"),), compute_target="slurm", node_count=2, distributed_backend=backend,
                 environment_variables=planted.VARIABLES)  # fmt: skip
    look(job, tmp_path / "go", distdl_home, slurm.folder)
