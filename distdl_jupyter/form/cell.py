"""The form of a cell's text, computed in the process that will run the cell or in one that represents it.

No state is kept between requests, so kernel, server and the Python of a kernel respond alike. The environment
(backends, GPUs, the notebook's names) is that of the responding process.
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distdl_jupyter import azure
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry, space
from distdl_jupyter.core.aliases import resolve
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.options import ABOUT, checked
from distdl_jupyter.form import arguments, datarows, magic
from distdl_jupyter.form.choices import other_options, split_label
from distdl_jupyter.form.magic import MAGICS, SWEEP, CellText, split
from distdl_jupyter.form.schema import Chosen, FormRequest, FormState
from distdl_jupyter.form.state import CLUSTER_TIMEOUT, Form, Line, state
from distdl_jupyter.form.target import Look, Target


@dataclass(slots=True)
class KernelContext:
    """What a kernel adds to a request: its names, its defaults of ``%dist_config``, and the magic that is free.

    ``count`` is how many cells it has run, and ``looks`` the memory of the last look between two requests.
    """

    namespace: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    magic: str = MAGICS[0]
    count: int = 0
    looks: dict[Hashable, Look] = field(default_factory=dict)


def cell_state(
    request: FormRequest, kernel: KernelContext | None = None, directory: str = "", timeout: float = CLUSTER_TIMEOUT
) -> FormState:
    """Return the form of a text. ``directory`` is the folder that local paths begin in, "" for this process's own."""
    text = split(request.code)
    line = read_line(text, kernel.defaults if kernel else {})
    varied = request.chosen.sweep if request.chosen else line.chosen.get("sweep", "")
    form = Form(
        target=_target(request, text, kernel, varied),
        line=line,
        magic=_word(text, kernel),
        code=text.body,
        directory=directory,
        timeout=timeout,
    )
    return state(form, request)


def _target(request: FormRequest, text: CellText, kernel: KernelContext | None, varied: str) -> Target:
    values = space.sampled(varied)
    if kernel is not None and request.again:
        kernel.looks.clear()
    return Target(
        text=text,
        namespace={**kernel.namespace, **values} if kernel else values if request.own else None,
        notebook=request.notebook,
        cell_id=request.cell_id,
        execution_count=request.execution_count,
        unnamed="job" if request.own else "cell",
        seen=kernel.looks if kernel else {},
        key=(text.body, kernel.count if kernel else 0, request.cell_id, varied),
    )


def _word(text: CellText, kernel: KernelContext | None) -> str:
    """Return the magic to write: that of the cell, unless another package has registered it in this kernel."""
    free = kernel.magic if kernel else MAGICS[0]
    return text.magic if text.magic in MAGICS and free == MAGICS[0] else free


def read_line(text: CellText, defaults: Mapping[str, Any]) -> Line:
    """Return what the cell's own magic line asks for, read as the magic reads it; a wrong line is a problem, no error.

    ``defaults`` are those of the kernel.
    """
    try:
        if not text.ours:
            return read_defaults(arguments.job_options(argparse.Namespace(), defaults))
        if text.magic == SWEEP:
            return _read_sweep(text.line, defaults)
        chosen = arguments.cell_parser(text.magic.lstrip("%")).parse(text.line)
        given, rest = _parted(arguments.job_options(chosen, defaults, value=_unknown))
        kept, own = _words(rest, chosen, "wait"), _words({}, chosen, "panel")
        return replace(read_defaults(given), kept=kept, own=own, variable=getattr(chosen, "out", ""))
    except DistDLError as error:
        return Line(problem=error, is_sweep=text.magic == SWEEP)


def _read_sweep(line: str, defaults: Mapping[str, Any]) -> Line:
    _, rest = space.of_line(line)
    chosen = arguments.sweep_parser().parse(rest)
    given, others = _parted(arguments.job_options(chosen, defaults, value=_unknown))
    shown = {name: getattr(chosen, name) for name in ("trials", "metric", "parallel") if hasattr(chosen, name)}
    own = _words({}, chosen, *(name for name in arguments.SWEEP if name not in shown))
    read = read_defaults(given)
    return replace(
        read,
        chosen={**read.chosen, "sweep": line.removesuffix(rest).strip(), **shown},
        kept=_words(others, chosen, "wait"),
        own=own,
        variable=getattr(chosen, "out", ""),
        is_sweep=True,
    )


def _parted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options that have a field, and the others."""
    given = {name: value for name, value in options.items() if name in names_in_form()}
    return given, {name: value for name, value in options.items() if name not in given}


def _unknown(_: str) -> str:
    """Answer for a variable that the kernel has: its value is of no use to a form."""
    return ""


def _words(rest: Mapping[str, Any], chosen: argparse.Namespace, *names: str) -> tuple[str, ...]:
    own = {name: value for name, value in vars(chosen).items() if name in names}
    return tuple(word for name, value in {**rest, **own}.items() for word in magic.flag_words(name, value))


# initial values ---------------------------------------------------------------------------------------

_GPU_WORDS: dict[bool | None, str] = {None: "", True: "yes", False: "no"}


def read_defaults(given: Mapping[str, Any]) -> Line:
    """Return what a form begins with for these options. Raises InvalidSpec for an option that is wrong."""
    options = _backend_options()
    found = {name: value for name, value in resolve(given, names_in_form()).items() if value is not None}
    common = checked(found)
    chosen = {name: common[name] for name in Chosen.__struct_fields__ if name in common}
    label, preset = _backend(common.get("distributed_backend"))
    cluster_configs.find(common.get("compute_target", "local"))
    chosen |= {"distributed_backend": label} if label else {}
    chosen["backend_options"] = {**preset, **{name: found[name] for name in options if name in found}}
    chosen["use_gpu"] = _GPU_WORDS[common.get("use_gpu")]
    chosen["data"] = tuple(datarows.begun(common.get("data")))
    chosen["outputs"] = datarows.unsigned(str(found.get("outputs") or ""))
    typed = {name: (common if ABOUT[name].repeats else found)[name] for name in other_options() if name in common}
    chosen["other_options"] = {
        name: ",".join(value) if isinstance(value, tuple) else value for name, value in typed.items()
    }
    if "vm_size" in common:
        chosen["vm_size"] = azure.find(common["vm_size"]).name
    if "price_per_hour" in common:
        chosen["price_per_hour"] = str(common["price_per_hour"])
    return Line(chosen, common.get("environment_variables", {}))


def names_in_form() -> set[str]:
    """Return the primary names of all options that the form has a place for."""
    return {*(name for name, about in ABOUT.items() if about.in_form), *_backend_options()}


def _backend_options() -> set[str]:
    """Return the names of all options that backends declare."""
    names = set(registry.backend_labels().values())
    return {option.name for name in names for option in registry.options("backends", name)}


def _backend(label: Any) -> tuple[str, dict[str, Any]]:
    return ("", {}) if label is None else split_label(registry.backend_label(str(label)))
