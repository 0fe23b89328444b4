"""Many jobs at once from one template: all start warm and end, and the template holds no more than before."""

import pytest

from distdl_jupyter import submit
from distdl_jupyter.warm import start as warm_start
from tests.conftest import until_gone, wait_for
from tests.faults import census
from tests.selection import few_or_all
from tests.warm.conftest import is_warm

pytestmark = pytest.mark.timeout(900)


def prints(number):
    import time

    for step in range(20):
        print(f"job {number} line {step}")
        time.sleep(0.02)
    return number


@pytest.mark.full
@pytest.mark.fault(
    "many", "jobs that start warm run to their end with every line; the template uses no more memory than before"
)
def test_many_jobs_at_once_from_one_template(distdl_home, injected):
    template = warm_start.get_status(warm_start.get_template_files())["pid"]
    assert submit(prints, (0,)).result(timeout=100) == 0
    wait_for(
        lambda: warm_start.get_status(warm_start.get_template_files())["running"] == 0, 60, "the first job forgotten"
    )
    before = census.of(template)
    jobs = [submit(prints, (number,)) for number in range(few_or_all(8, 50))]
    for number, job in enumerate(jobs):
        assert job.result(timeout=600) == number
        assert is_warm(job)
        assert [str(line) for line in job.logs(0)] == [f"job {number} line {step}" for step in range(20)]
        injected()
    assert not any(until_gone(job.id) for job in jobs)
    assert warm_start.get_status(warm_start.get_template_files())["pid"] == template
    census.settled(template, before, memory=5)
