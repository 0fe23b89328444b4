"""``python -m distdl_jupyter.testing.orphan``: hold a job until this process is killed.

It reads one JSON line that describes the job, listens until every rank has said some lines, writes down how far it
has read, as a supervisor does in its events, and then does nothing any more.
"""

from __future__ import annotations

import json
import sys
import time

from distdl_jupyter.testing.listener import Listener
from distdl_jupyter.testing.sample import Sample


def main() -> None:
    """Start, listen, tell, wait."""
    asked = json.loads(sys.stdin.readline())
    sample = Sample(asked["name"], asked["options"], asked["code"], asked["nodes"], asked["per_node"])
    listener = Listener(sample.start(), sample.nonce)
    ranks = range(asked["nodes"] * asked["per_node"])
    streams = [(rank, name) for rank in ranks for name in ("out", "err")]
    listener.until(
        lambda: all(len(listener.said(*which)) >= asked["lines"] for which in streams),
        asked["timeout"],
        f"{asked['lines']} lines of every rank",
    )
    answer = {
        "id": sample.id,
        "nonce": sample.nonce,
        "handle": listener.run.handle(),
        "positions": [[*which, at] for which, at in listener.positions.items()],
        "lines": [[*which, listener.said(*which)] for which in streams],
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    time.sleep(3600)


if __name__ == "__main__":
    main()
