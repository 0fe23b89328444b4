"""A program: the driver of an elastic Horovod job, on the first of its nodes.

``python -m distdl_jupyter.backends.elastic ADDRESS PORT MIN_SIZE SECONDS`` serves the rendezvous on ADDRESS. MIN_SIZE
is the smallest number of processes, SECONDS how long they may take to meet. It starts no process itself: it exchanges
``messages`` with the job's supervisor.
"""

from __future__ import annotations

import os
import sys
import threading

from distdl_jupyter.backends.elastic.driver import Driver, Limits
from distdl_jupyter.backends.elastic.messages import Supervisor
from distdl_jupyter.backends.elastic.rendezvous import ElasticRendezvous


def main() -> int:
    """Run the job and return an exit code."""
    address, port, min_size, timeout = sys.argv[1:]
    supervisor = Supervisor(_take_stdout(), sys.stdin)
    driver = Driver(supervisor.read_slots(), Limits.of(min_size, timeout), supervisor)
    rendezvous = ElasticRendezvous(address, int(port), driver.assignment)
    rendezvous.open()
    threading.Thread(target=supervisor.listen, args=(driver.wake,), name="supervisor", daemon=True).start()
    return driver.run(rendezvous)


def _take_stdout() -> int:
    """Return the descriptor for messages; whatever else is printed goes to the error output."""
    found = os.dup(1)
    os.dup2(2, 1)
    return found


if __name__ == "__main__":
    sys.exit(main())
