"""``python -m distdl_jupyter.worker``: one rank of a job."""

from distdl_jupyter.worker import parting
from distdl_jupyter.worker.rank import main

if __name__ == "__main__":
    parting.end(main())
