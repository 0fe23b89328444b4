"""The launch form as its page sees it: what is chosen stands there, all else is what was answered, as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.humanize import processes
from distdl_jupyter.form.schema import FormRequest, FormValues
from distdl_jupyter.form.state import compute_cell_form
from distdl_jupyter.form.target import KernelContext
from distdl_jupyter.form.values import to_options
from distdl_jupyter.views.wire import from_data, to_json
from distdl_jupyter.widgets.launch import LaunchForm

if TYPE_CHECKING:
    from distdl_jupyter.jobs.client import Job


def asked(code: str, kernel: KernelContext | None = None, directory: str = "", **more: Any) -> dict[str, Any]:
    """Return what a page is answered to a text, what is chosen beside the rest."""
    found = to_json(compute_cell_form(from_data(FormRequest, {"code": code, **more}), kernel, directory))
    return {**found, **found["values"]}


def answered_apart(code: str, **more: Any) -> dict[str, Any]:
    """Return what another process answers to a text."""
    about = {"call": "form", "arguments": {"code": code, **more}}
    command = [sys.executable, "-m", "distdl_jupyter.api.submit_process"]
    done = subprocess.run(command, input=json.dumps(about), capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["value"]
    return {**found, **found["values"]}


class Page:
    """The form of a function. Setting what users choose asks again, as a page does."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> None:
        self.__dict__.update(jobs=[], status={}, answers=0)
        self.__dict__["form"] = LaunchForm(function, args, kwargs, on_submitted=self.jobs.append, **given)
        self.__dict__["values"] = None
        self.ask()

    def __getattr__(self, name: str) -> Any:
        return self.shown[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self.choose(**{name: value})

    def choose(self, **changes: Any) -> None:
        """Take what a user chose."""
        assert set(changes) <= set(FormValues.__struct_fields__), changes
        if "process_count_per_node" in changes:
            changes["automatic"] = False
        if "distributed_backend" in changes:
            changes["backend_options"] = {}
        self.__dict__["values"] = {**self.values, **changes}
        self.ask()

    def ask(self, **more: Any) -> None:
        """Ask for the form as it follows from what is chosen."""
        given = {"environment": [{"name": one["name"], "value": one["value"]} for one in self.environment]} \
            if self.values else {}  # fmt: skip
        found = to_json(self.form.compute_state(from_data(FormRequest, {"values": self.values, **given, **more})))
        self.__dict__.update(shown=found, values=found["values"], answers=self.answers + 1)
        self.__dict__["shown"] = {**found, **found["values"]}

    def look(self) -> None:
        """Ask again, as a page does while machines are polled."""
        self.ask()

    def refresh(self) -> None:
        """Press "Check again"."""
        self.ask(refresh=True)

    def apply(self, code: str) -> None:
        """Follow an advice."""
        self.ask(apply=code)

    def set_environment(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Type all variables anew; a value of None keeps the secret that is there."""
        self.ask(environment=list(entries))

    @property
    def total(self) -> str:
        """The sum that the form is."""
        return processes(self.node_count, self.process_count_per_node)

    def options(self) -> dict[str, Any]:
        """Return what ``submit`` gets, secrets included."""
        target, request = self.form._target, self.form._request
        assert request.values is not None
        return to_options(request.values, target.line.environment_variables, target.inspect().name)

    def submit(self) -> Job | None:
        """Press Submit; None when it is refused, and ``status`` says why."""
        try:
            job = self.form.submit()
        except (DistDLError, OSError) as error:
            self.__dict__["status"] = {"level": "error", "text": str(error)}
            return None
        self.__dict__["status"] = {"level": "ok", "name": job.spec.name, "job": job.id}
        return job
