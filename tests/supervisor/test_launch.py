"""What must be there before ranks are started, also by a supervisor that took the job over."""

import pytest

from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.supervisor.attempt import RunClock
from distdl_jupyter.supervisor.control import ControlReader
from distdl_jupyter.supervisor.launch import Launch
from distdl_jupyter.supervisor.recorder import EventRecorder


@pytest.mark.fault("restarts", "no rank restarts without its secret variables; the message names them")
def test_ranks_do_not_begin_again_without_a_secret_that_only_the_first_supervisor_knew(tmp_path):
    folder = JobFolder(tmp_path)
    spec = JobSpec(id="20261121-024912-k3f9x", name="x", secret_variables=("HF_TOKEN", "DB_PASS"))
    recorder = EventRecorder(folder, spec)
    second = Launch(recorder, ControlReader(folder.control), RunClock(None), {"DB_PASS": "known"})
    with pytest.raises(LaunchFailed, match=r"the secret value of HF_TOKEN was known .* job\.resume\(\)"):
        second.start()
    recorder.close()
