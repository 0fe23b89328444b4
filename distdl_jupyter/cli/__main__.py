"""``python -m distdl_jupyter.cli``: the command line if ``distdl`` is not on PATH."""

from __future__ import annotations

import sys

from distdl_jupyter.cli import main

sys.exit(main())
