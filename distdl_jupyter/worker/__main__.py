"""``python -m distdl_jupyter.worker``: one rank of a job."""

import sys

from distdl_jupyter.worker.rank import main

sys.exit(main())
