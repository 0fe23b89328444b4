"""The stand-in for the C++ compiler that makes Horovod's old build files fit today's torch.

It is a small POSIX shell script: it runs some hundred times in a build. Must not know who calls it.
"""

from __future__ import annotations

import platform
import shlex

_WRAPPER = r"""#!/bin/sh
# Runs the C++ compiler with the language level that torch's headers need and with libraries found relative to the
# built extension, so that the wheel works in any environment laid out alike. -g goes: it would only grow the wheel.
link=yes
left=$#
skip=
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  if [ -n "$skip" ]; then skip=; continue; fi
  case $argument in
    */horovod/tensorflow/xla_mpi_ops.cc) set -- "$@" -x c++; argument=/dev/null ;;
    -std=c++11|-std=c++14|-std=gnu++11|-std=gnu++14|-std=c++0x|-std=c++1y) argument=-std=c++17 ;;
    -c|-E|-S|-M|-MM|--version|-v) link= ;;
    -g) continue ;;
    @RPATH_CASES@
  esac
  set -- "$@" "$argument"
done
if [ -n "$link" ]; then set -- "$@" @RPATHS@; fi
exec @COMPILER@ "$@"
"""

_DROP_RPATHS = """-Wl,-rpath) skip=yes; continue ;;
    -Wl,-rpath,*|-Wl,-rpath=*) continue ;;"""


def wrapper_script(compiler: str, *, keep_rpaths: bool, system: str | None = None) -> str:
    """Return the POSIX shell script that stands in for the C++ compiler.

    Language levels below C++17 become C++17. With ``keep_rpaths`` the library paths that CMake and mpicxx ask for
    stay (a system MPI may lie anywhere); without, they go, because they would point into the environment that
    happened to build. Either way the environment's lib directory, torch's and TensorFlow's are found relative to the
    extension (``site-packages/horovod/torch``). A unit that today's TensorFlow has no headers for becomes an empty one.
    """
    here = "@loader_path" if (system or platform.system()) == "Darwin" else "$ORIGIN"
    places = ("../../../..", "../../torch/lib", "../../tensorflow")
    rpaths = [f"-Wl,-rpath,{here}/{place}" for place in places]
    return (
        _WRAPPER.replace("@RPATH_CASES@", "" if keep_rpaths else _DROP_RPATHS)
        .replace("@RPATHS@", " ".join(f"'{rpath}'" for rpath in rpaths))
        .replace("@COMPILER@", " ".join(shlex.quote(word) for word in shlex.split(compiler)))
    )
