"""Trains and prints a thousand lines a step; must import nothing of this project but where it runs as its job."""


def flood(meeting: str, rank: int, ranks: int, steps: int, report=None) -> dict:
    """Wait for all ranks, then train ``steps`` steps of about 10 ms; return the clock, and the seconds of all of it."""
    import os
    import sys
    import time

    with open(f"{meeting}-{rank}", "w"):
        pass
    while not all(os.path.exists(f"{meeting}-{other}") for other in range(ranks)):
        time.sleep(0.01)
    begun, busy, weight = time.monotonic(), time.process_time(), 0.5
    for step in range(steps):
        for n in range(60_000):
            weight += 0.001 * n - weight
        for n in range(1000):
            print(f"{rank}:{step * 1000 + n} loss 0.123456 of a step like any other")
        if report is not None:
            report(step=step, sent=time.time())
    sys.stdout.flush()
    taken, busy = time.monotonic() - begun, time.process_time() - busy
    return {"taken": taken, "busy": busy, "ended": time.time(), "weight": weight, "reader": most_memory(os.getppid())}


def most_memory(pid: int) -> float:
    """Return the most memory that a process has held, in MB (0 where nobody tells)."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))
    except OSError:
        return 0.0


def on_ranks(meeting: str, ranks: int, steps: int) -> dict:
    """Run as a rank of a job, with a metric after every step."""
    import os

    from distdl_jupyter import log

    return flood(meeting, int(os.environ["RANK"]), ranks, steps, log)


if __name__ == "__main__":
    import json
    import sys

    told = flood(sys.argv[1], *map(int, sys.argv[2:5]))
    with open(f"{sys.argv[1]}-{sys.argv[2]}-told", "w") as file:
        json.dump(told, file)
