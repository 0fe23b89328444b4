"""jupyter-scheduler's jobs, in an environment that has it: ``scheduled.py make|list FILE COUNT``.

``make`` fills its own table of jobs, ``list`` asks its ``Scheduler`` for all of them and prints the seconds.
"""

import sys
import tempfile
import time

from jupyter_scheduler.environments import CondaEnvironmentManager
from jupyter_scheduler.models import ListJobsQuery, Status
from jupyter_scheduler.orm import Job, create_session, create_tables
from jupyter_scheduler.scheduler import Scheduler

what, url, count = sys.argv[1], f"sqlite:///{sys.argv[2]}", int(sys.argv[3])
if what == "make":
    create_tables(url)
    with create_session(url)() as session:
        for number in range(count):
            about = {
                "runtime_environment_name": "python3",
                "input_filename": "digits.ipynb",
                "output_formats": ["ipynb"],
            }
            session.add(Job(name=f"digits {number}", status=Status.COMPLETED, start_time=1, end_time=2, **about))
        session.commit()
else:
    scheduler = Scheduler(tempfile.gettempdir(), CondaEnvironmentManager(), url, task_runner_class=None)
    begun = time.perf_counter()
    found = scheduler.list_jobs(ListJobsQuery(max_items=count)).jobs
    seconds = time.perf_counter() - begun
    assert len(found) == count, found
    sys.stderr.write(f"\n{seconds}")
