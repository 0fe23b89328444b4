"""What a kernel shows and says before ``%load_ext distdl_jupyter``, for example after a restart."""

import subprocess
import sys

import pytest

from distdl_jupyter import jobs
from tests.conftest import wait_for

pytestmark = pytest.mark.timeout(600)
JOB_MIME = "application/vnd.distdl.job+json"
SWEEP_MIME = "application/vnd.distdl.sweep+json"


def test_importing_the_package_is_cheap_and_does_not_import_ipython():
    code = "import sys, distdl_jupyter; print([m for m in ('IPython', 'ipywidgets', 'torch') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_handles_show_themselves_without_the_extension(plain_kernel):
    plain_kernel.ok("from distdl_jupyter import submit\njob = submit(lambda: 42).wait()")
    id_ = jobs()[0].id

    ran = plain_kernel.ok(f"from distdl_jupyter import attach\nattach({id_!r})", cell_id="cell-1")
    assert ran.shown[0][JOB_MIME]["id"] == id_
    assert "Completed" in ran.shown[0]["text/plain"]
    assert ran.value is None, "the display replaces the plain text"
    assert plain_kernel.ok("display(job)").shown[0][JOB_MIME]["id"] == id_, "display() does the same"
    assert plain_kernel.ok("job.rerun().wait()").shown[0]["text/html"]

    for call in ("jobs()", "queue()", "clusters()", "job.resources()", "job.checkpoints()", "job.time()"):
        shown = plain_kernel.ok(f"from distdl_jupyter import clusters, jobs, queue\n{call}").value
        assert shown["text/html"], call


def test_a_sweep_shows_itself_without_the_extension(plain_kernel):
    plain_kernel.ok(
        "from distdl_jupyter import sweep\n"
        "def train(lr):\n    from distdl_jupyter import log\n    log(step=0, loss=lr)\n"
        "found = sweep(train, {'lr': [0.1]}, sampler='grid').wait()"
    )
    shown = plain_kernel.ok("sweep()").value
    assert shown[SWEEP_MIME]["id"]
    assert "0.1" in shown["text/html"]
    wait_for(lambda: all(job.state.ended for job in jobs()))
