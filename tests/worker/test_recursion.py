"""The recursion limit is raised only while code is analyzed."""

import sys
import threading

from distdl_jupyter.worker.frames import deep_recursion


def test_the_last_thread_that_leaves_puts_the_limit_back():
    before = sys.getrecursionlimit()
    first_is_in, second_is_out = threading.Event(), threading.Event()
    seen = []

    def first():
        with deep_recursion():
            first_is_in.set()
            second_is_out.wait(20)
            seen.append(sys.getrecursionlimit())

    thread = threading.Thread(target=first)
    thread.start()
    first_is_in.wait(20)
    with deep_recursion(), deep_recursion():
        seen.append(sys.getrecursionlimit())
    seen.append(sys.getrecursionlimit())
    second_is_out.set()
    thread.join()
    assert set(seen) == {max(before, 20_000)}
    assert sys.getrecursionlimit() == before
