"""The end of a rank's process: nothing that Python's own end would have written or run is lost."""

import textwrap

import pytest

from tests.worker import ranks


def test_files_that_nobody_closed_are_written(folder):
    (folder.path / "code" / "beside.py").write_text("kept = open('beside.txt', 'w')\nkept.write('from a module')\n")
    code = """
    import beside
    text = open("text.txt", "w")
    text.write("a")
    data = open("data.bin", "wb")
    data.write(b"b");
    """
    ended = ranks.run(folder.cell(textwrap.dedent(code)))
    assert ended.code == 0, ended.err
    found = {name: (folder.path / name).read_text() for name in ("text.txt", "data.bin", "beside.txt")}
    assert found == {"text.txt": "a", "data.bin": "b", "beside.txt": "from a module"}


def test_what_a_c_program_printed_is_written(folder):
    ended = ranks.run(folder.cell("import ctypes\nctypes.CDLL(None).puts(b'from C');"))
    assert (ended.code, ended.out) == (0, "from C\n"), ended.err


def test_objects_threads_and_exit_functions_come_to_their_ends_in_their_order(folder):
    code = """
    import atexit, threading, time, weakref

    class Kept:
        def __del__(self):
            print("object")

    def work():
        time.sleep(0.3)
        print("thread")

    kept = Kept()
    kept.itself = kept
    atexit.register(print, "exit function")
    threading.Thread(target=work).start();
    """
    ended = ranks.run(folder.cell(textwrap.dedent(code)))
    assert ended.code == 0, ended.err
    assert ended.out.split("\n")[:-1] == ["thread", "exit function", "object"]


@pytest.mark.parametrize("more", [{}, {"NVTX_INJECTION64_PATH": "/nowhere"}])
@pytest.mark.parametrize(("code", "exit_code"), [("1", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1)])
def test_the_exit_code_is_kept_with_and_without_an_injected_program(folder, code, exit_code, more):
    assert ranks.run(folder.cell(code), **more).code == exit_code
