"""Runs the command line as ``python -m distdl_jupyter.cli``, for example if ``distdl`` is not on PATH."""

from __future__ import annotations

import sys

from distdl_jupyter.cli import main

sys.exit(main())
