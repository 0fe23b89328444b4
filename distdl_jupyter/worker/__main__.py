"""``python -m distdl_jupyter.worker``: one rank of a job."""

from distdl_jupyter.worker import shutdown
from distdl_jupyter.worker.rank import main

if __name__ == "__main__":
    shutdown.exit_process(main())
