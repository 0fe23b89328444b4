"""The launch form as a widget: ``launcher(train)`` shows it, Submit starts a job and shows its panel below.

The form's state is ``LaunchModel``; here it only meets the page and the job's panel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets
import traitlets

from distdl_jupyter.form import naming
from distdl_jupyter.form.model import LaunchModel
from distdl_jupyter.panels.widget import PageWidget, made_for_page
from distdl_jupyter.views import azure

if TYPE_CHECKING:
    from distdl_jupyter.client import Job
    from distdl_jupyter.panels.widget import Calls


class LaunchForm(LaunchModel, PageWidget):
    """The form on the page. ``on_submitted`` hears of each job that was started."""

    _view_name = traitlets.Unicode("launch").tag(sync=True)

    def __init__(self, *args: Any, on_submitted: Callable[[Any], None], **kwargs: Any) -> None:
        self._on_submitted = on_submitted
        super().__init__(*args, **kwargs)

    @property
    def calls(self) -> Calls:
        """What the page may ask for."""
        return {**azure.CALLS, **naming.calls(self)}

    def on_message(self, message: dict[str, Any]) -> None:
        """Do what was pressed."""
        match message.get("type"):
            case "submit":
                self.press()
            case "apply":
                self.apply(str(message.get("code")))
            case "environment":
                self.set_environment(message.get("entries") or ())
            case "refresh":
                self.refresh()
            case "look":
                self.recompute()
            case _:
                super().on_message(message)

    def press(self) -> None:
        """Do what the button Submit does."""
        job = self.submit()
        if job is not None:
            self._on_submitted(job)


class Launcher(ipywidgets.VBox):  # type: ignore[misc]
    """A form with the panel of the newest job below it. ``jobs`` are all jobs that it started, oldest first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.jobs: list[Job] = []
        self.form = made_for_page(LaunchForm)(*args, on_submitted=self._show, **kwargs)
        super().__init__(children=[self.form])

    @property
    def job(self) -> Job | None:
        """The newest job, None before the first Submit."""
        return self.jobs[-1] if self.jobs else None

    def submit(self) -> Job | None:
        """Do what the button Submit does and return the job; None when it was refused (the form says why)."""
        before = len(self.jobs)
        self.form.press()
        return self.job if len(self.jobs) > before else None

    def _show(self, job: Job) -> None:
        from distdl_jupyter.panels import panel

        self.jobs.append(job)
        self.children = [self.form, panel(job)]


def launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **defaults: Any,
) -> Launcher:
    """Return the form that runs ``function(*args, **kwargs)`` on several processes; shown as a cell's last value.

    ``defaults`` are options of ``submit`` that the form begins with (``node_count``, ``process_count_per_node``,
    ``distributed_backend``, ``vm_size``, ``name``, ``environment_variables``, ``max_run_duration_seconds``,
    ``use_gpu``, ``compute_target``, ``data``, ``outputs``), under their names or aliases.

    Raises InvalidSpec for an option or a value that is unknown, TypeError when ``function`` is no function.
    """
    if not callable(function):
        raise TypeError(
            f"launcher() takes the training function, not {type(function).__name__}: write launcher(train)."
        )
    return Launcher(function, args, kwargs, **defaults)
