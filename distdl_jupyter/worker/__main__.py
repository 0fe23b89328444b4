"""``python -m distdl_jupyter.worker``: one rank of a job."""

from distdl_jupyter.worker.rank import main
from distdl_jupyter.worker.watch import shutdown

if __name__ == "__main__":
    shutdown.end(main())
