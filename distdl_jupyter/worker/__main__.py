"""``python -m distdl_jupyter.worker``: one rank of a job."""

from distdl_jupyter.worker import rank
from distdl_jupyter.worker.rank import main

if __name__ == "__main__":
    rank.exit_process(main())
