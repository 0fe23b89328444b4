"""Prints numbered lines at a steady pace and tells when each was printed; must import nothing of this project."""


def print_lines(rank: int, pace: float, seconds: float, told: str) -> None:
    """Print ``pace`` lines a second, each ``RANK:NUMBER ...``; write their wall clocks into ``told`` as JSON."""
    import json
    import time

    begin, clocks = time.time(), []
    while (number := len(clocks)) < pace * seconds:
        ahead = begin + number / pace - time.time()
        if ahead > 0:
            time.sleep(ahead)
        clocks.append(time.time())
        print(f"{rank}:{number} loss 0.123456 of a step like any other")
    with open(told, "w") as file:
        json.dump(clocks, file)


def on_ranks(pace: float, seconds: float, told: str) -> None:
    """Print on each rank once ``told``-go is there; the file that each writes ends in the rank."""
    import os
    import time

    while not os.path.exists(f"{told}-go"):
        time.sleep(0.01)
    rank = int(os.environ["RANK"])
    print_lines(rank, pace, seconds, f"{told}-{rank}")
