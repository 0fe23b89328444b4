"""Stands for a notebook's kernel in the peers' environment: it has imported accelerate and calls its launcher.

Reads a line ``FUNCTION ARGUMENT...`` on its input for each call, calls ``notebook_launcher`` with the function of the
subjects and its arguments, and answers with one line of JSON: when the call began (wall clock), and what went wrong. It
says ``ready`` first, when all is imported. Must import nothing of this project.
"""

import contextlib
import importlib
import json
import os
import sys
import time
import traceback

RANKS = 2


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch  # noqa: F401 - as in a notebook whose earlier cells have used it
    from accelerate import notebook_launcher

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        place, *arguments = json.loads(line)
        module, _, name = place.partition(":")
        function = getattr(importlib.import_module(module), name)
        error, began = "", time.time()
        try:
            notebook_launcher(function, tuple(arguments), num_processes=RANKS)
        except BaseException:  # noqa: BLE001 - told to who asked
            error = traceback.format_exc()
        print(json.dumps({"began": began, "error": error}), file=answers, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
