"""The launch form as a widget: ``launcher(train)`` shows it, Submit starts a job or a sweep and shows it below.

The page requests the form's state from the kernel after each change, and a job or sweep on Submit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets
import msgspec
import traitlets

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.form.line import MagicLine, parse_search_space
from distdl_jupyter.form.schema import FormRequest, FormState
from distdl_jupyter.form.state import compute_form, get_variables
from distdl_jupyter.form.target import Target
from distdl_jupyter.form.values import from_options, get_sweep_arguments, to_options
from distdl_jupyter.jobs import client
from distdl_jupyter.jobs.client import Job
from distdl_jupyter.jobs.output import has_extension
from distdl_jupyter.studies.sweeps import Sweep, sweep
from distdl_jupyter.views import wire
from distdl_jupyter.widgets.job import panel
from distdl_jupyter.widgets.widget import PageWidget, create_shared_layout

#: The text for front ends in which the extension cannot draw the form.
_FALLBACK_TEXT = """<p>The launch form needs JupyterLab or Jupyter Notebook. Start the job here with</p>
<pre>form.submit()   # form = launcher({name}, ...)</pre><p>or</p><pre>submit({name}, process_count_per_node=2)</pre>"""


class LaunchForm(PageWidget):
    """The form of a function. ``on_submitted`` is called with each job or sweep that it starts."""

    #: The options of ``submit`` that the form shows, without secrets.
    options = traitlets.Dict()

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        on_submitted: Callable[[Job | Sweep], None],
        **options: Any,
    ) -> None:
        self._on_submitted = on_submitted
        self._function = function
        line = MagicLine(*from_options(options))
        self._target = Target(function=function, args=tuple(args), kwargs=dict(kwargs or {}), line=line)
        #: The newest request, which is the initial state of a page that opens later.
        self._request = FormRequest()
        handlers = {
            "form.state": lambda request: self.compute_state(wire.from_data(FormRequest, request)),
            "form.submit": self._on_submit,
        }
        super().__init__("launch", handlers)
        if not has_extension():
            self.value = _FALLBACK_TEXT.format(name=escape(getattr(function, "__name__", "train")))

    def compute_state(self, request: FormRequest | None = None) -> FormState:
        """Return the form for the values in a request (default: the newest request)."""
        if request is None or request.values is None:
            request = msgspec.structs.replace(self._request, apply="", refresh=False)
        # A page does not receive secrets, so it sends None for a secret that it has already submitted.
        variables = get_variables(self._target, request)
        self._target.line = dataclasses.replace(self._target.line, environment_variables=variables)
        if request.refresh:
            self._target.kernel.cache.clear()
        self._target.search_space = request.values.sweep if request.values else ""
        form = compute_form(self._target, request)
        self._request = msgspec.structs.replace(request, values=form.values, apply="")
        self.options = form.options
        return form

    def submit(self, request: FormRequest | None = None) -> Job | Sweep:
        """Start a job or a sweep with the values of the form. Raises the errors of ``client.submit`` and ``sweep``."""
        values, target = self.compute_state(request).values, self._target
        options = to_options(values, target.line.environment_variables, target.inspect().name)
        options = {name: value for name, value in options.items() if value is not None}
        handle: Job | Sweep
        if search_space := values.sweep.strip():
            options |= get_sweep_arguments(values)
            parameters = parse_search_space(search_space)
            handle = sweep(self._function, parameters, args=target.args, kwargs=target.kwargs, **options)
        else:
            handle = client.submit(self._function, target.args, target.kwargs, **options)
        self._on_submitted(handle)
        return handle

    def _on_submit(self, request: object) -> dict[str, str]:
        handle = self.submit(wire.from_data(FormRequest, request))
        return {"name": handle.name, "job": handle.id}


class LaunchPanel(ipywidgets.VBox):  # type: ignore[misc]
    """A form with its last job or sweep below it. ``jobs`` and ``sweeps`` are all that it has started, oldest first."""

    #: The newest job, or None if none was submitted.
    job = traitlets.Any(None)
    #: The options of ``submit`` that the form shows, without secrets.
    options = traitlets.Dict()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.jobs: list[Job] = []
        self.sweeps: list[Sweep] = []
        self.form = LaunchForm(*args, on_submitted=self._show_below, **kwargs)
        super().__init__(children=[self.form], layout=create_shared_layout())
        traitlets.dlink((self.form, "options"), (self, "options"))

    def submit(self) -> Job | Sweep:
        """Submit the form and return the job or the sweep. Raises DistDLError."""
        return self.form.submit()

    def _show_below(self, handle: Job | Sweep) -> None:
        if isinstance(handle, Job):
            self.jobs.append(handle)
            self.job = handle
            self.children = [self.form, panel(handle)]
        else:
            self.sweeps.append(handle)
            output = {"output_type": "display_data", "data": handle._repr_mimebundle_(), "metadata": {}}
            self.children = [self.form, ipywidgets.Output(outputs=(output,))]


def launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **defaults: Any,
) -> LaunchPanel:
    """Return a form that runs ``function(*args, **kwargs)`` on several processes. Display it as a cell's last value.

    ``defaults`` are the initial values of options of ``submit`` (``node_count``, ``process_count_per_node``,
    ``distributed_backend``, ``vm_size``, ``name``, ``environment_variables``, ``max_run_duration_seconds``,
    ``use_gpu``, ``compute_target``, ``data``, ``outputs``), under their names or aliases.

    Raises InvalidSpec for an unknown option or value, and if ``function`` is not a function.
    """
    if not callable(function):
        raise InvalidSpec(
            f"launcher() needs the training function, not {type(function).__name__}.",
            code="launcher-without-function",
            field="function",
            hint="Call launcher(train).",
        )
    return LaunchPanel(function, args, kwargs, **defaults)
