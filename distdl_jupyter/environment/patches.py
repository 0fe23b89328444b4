"""Patches that make Horovod's last release compile with current compilers, torch and TensorFlow.

``build`` applies them, and fails unless each text to replace occurs exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patch:
    """Replace ``before`` by ``after`` in the file ``path`` of the source; ``why`` is the reason."""

    why: str
    path: str
    before: str
    after: str


_LIBRARY_PATHS = """project(horovod CXX)

# Find libraries relative to the built extension (site-packages/horovod/torch), so that a wheel fits any environment.
if(APPLE)
    set(HERE "@loader_path")
else()
    set(HERE "$ORIGIN")
endif()
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH
        "${HERE}/../../../.."
        "${HERE}/../../torch/lib"
        "${HERE}/../../tensorflow"
        "${HERE}/../../nvidia/nccl/lib")
"""

_MPI_LIBRARIES = "        list(APPEND LINKER_LIBS ${MPI_LIBRARIES})\n"

_MPI_LIBRARY_PATHS = (
    _MPI_LIBRARIES
    + """        foreach(LIBRARY IN LISTS MPI_LIBRARIES)
            get_filename_component(FOLDER "${LIBRARY}" DIRECTORY)
            if(FOLDER AND NOT FOLDER IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
                list(APPEND CMAKE_INSTALL_RPATH "${FOLDER}")
            endif()
        endforeach()
"""
)

_SPAN_ASSIGNMENT = """  FLATBUFFERS_CONSTEXPR_CPP14 span &operator=(const span &other)
      FLATBUFFERS_NOEXCEPT {
    data_ = other.data_;
    count_ = other.count_;
  }
"""

_PYTHON_HEADERS = "from distutils.sysconfig import get_python_inc; print(get_python_inc())"

_COMPILER_FLAGS = 'set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -pthread -fPIC'

_HEADERS = "".join(
    f" -include {header}" for header in ("string", "cstdint", "stdexcept", "algorithm", "functional", "memory")
)

_TORCH_CUDA = "if (Pytorch_CUDA OR Pytorch_ROCM)\n"

_COMPLETE_CUDA = """if (Pytorch_CUDA AND NOT HAVE_CUDA)
    find_package(CUDAToolkit QUIET)
    set(Pytorch_CUDA ${CUDAToolkit_FOUND})
endif()

"""

PATCHES = (
    Patch("torch's headers need C++17", "CMakeLists.txt", "CXX_STANDARD 14)", "CXX_STANDARD 17)"),
    Patch("torch's headers need C++17", "horovod/torch/CMakeLists.txt", "CXX_STANDARD 14)", "CXX_STANDARD 17)"),
    Patch("the same C++ in Gloo", "third_party/gloo/CMakeLists.txt", "-std=c++11 -fPIC", "-std=c++17 -fPIC"),
    Patch("CMake 4 refuses older ones", "third_party/gloo/CMakeLists.txt", "VERSION 2.8.12", "VERSION 3.13"),
    Patch("GCC 13 includes fewer headers", "CMakeLists.txt", _COMPILER_FLAGS, _COMPILER_FLAGS + _HEADERS),
    Patch(
        "GCC 14 refuses an operator that assigns to constants",
        "third_party/flatbuffers/include/flatbuffers/stl_emulation.h",
        _SPAN_ASSIGNMENT,
        "  span &operator=(const span &other) = delete;\n",
    ),
    Patch(
        "Python 3.12 has no distutils",
        "horovod/torch/CMakeLists.txt",
        _PYTHON_HEADERS,
        "import sysconfig; print(sysconfig.get_path('include'))",
    ),
    Patch(
        "TensorFlow's wheels lack the headers of its XLA operations; only HOROVOD_ENABLE_XLA_OPS is lost",
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        "",
    ),
    Patch(
        "an nvcc on PATH without the CUDA libraries must not end a build for CPUs",
        "cmake/Modules/FindPytorch.cmake",
        _TORCH_CUDA,
        _COMPLETE_CUDA + _TORCH_CUDA,
    ),
    Patch(
        "the same: CMake stops if it looks for a compiler in an incomplete CUDA toolkit",
        "CMakeLists.txt",
        "if(CUDAToolkit_BIN_DIR)",
        "if(CUDAToolkit_FOUND)",
    ),
    Patch("debug information makes the wheel larger", "setup.py", "'RelWithDebInfo'", "'Release'"),
    Patch("a wheel fits any environment", "CMakeLists.txt", "project(horovod CXX)\n", _LIBRARY_PATHS),
)

#: The patch for an MPI outside of the Python environment, whose libraries do not move with the environment.
SYSTEM_MPI = Patch("a system MPI may be in any folder", "CMakeLists.txt", _MPI_LIBRARIES, _MPI_LIBRARY_PATHS)
