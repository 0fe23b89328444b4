"""The state of the launch form: plain traits and what follows from them, without any widget.

The page sets the traits of the first group and shows those of the second, which are worked out here after each
change. Values of environment variables whose name looks secret never become a trait: traits can be saved with a
notebook.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import traitlets

from distdl_jupyter import azure
from distdl_jupyter.advice import Advice, Request, advise
from distdl_jupyter.azure import merged
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.humanize import processes
from distdl_jupyter.core.machine import cores
from distdl_jupyter.core.options import MOST_RESTARTS
from distdl_jupyter.form import checks, history
from distdl_jupyter.form import choices as offered
from distdl_jupyter.form import defaults as presets
from distdl_jupyter.form import magic as magics
from distdl_jupyter.form import place as places
from distdl_jupyter.form import shown as wording
from distdl_jupyter.form.code import Training
from distdl_jupyter.form.costfields import CostFields, rented
from distdl_jupyter.form.datafields import DataFields
from distdl_jupyter.form.defaults import Defaults
from distdl_jupyter.form.subject import FunctionSubject, Subject

_USE_GPU = {"": None, "yes": True, "no": False}
MAX_COUNT = 10_000
#: What the user chooses and the form works out where nothing was given.
_WORKED_OUT = ("automatic", "process_count_per_node", "distributed_backend", "name")


class FormModel(DataFields, CostFields):
    """One form for one function or cell."""

    # What the user chooses, under the names of the options.
    vm_size = traitlets.Unicode("").tag(sync=True, chosen=True)
    node_count = traitlets.Int(1, min=1, max=MAX_COUNT).tag(sync=True, chosen=True)
    process_count_per_node = traitlets.Int(1, min=1, max=MAX_COUNT).tag(sync=True, chosen=True)
    automatic = traitlets.Bool(default_value=True).tag(sync=True, chosen=True)
    distributed_backend = traitlets.Unicode("plain").tag(sync=True, chosen=True)
    backend_options = traitlets.Dict().tag(sync=True, chosen=True)
    compute_target = traitlets.Unicode("local").tag(sync=True, chosen=True)
    name = traitlets.Unicode("").tag(sync=True, chosen=True)
    max_run_duration_seconds = traitlets.Float(0.0, min=0.0).tag(sync=True, chosen=True)
    hang_timeout_seconds = traitlets.Float(0.0, min=0.0).tag(sync=True, chosen=True)
    max_restarts = traitlets.Int(0, min=0, max=MOST_RESTARTS).tag(sync=True, chosen=True)
    use_gpu = traitlets.Enum(list(_USE_GPU), "").tag(sync=True, chosen=True)

    # What the page shows.
    choices = traitlets.Dict().tag(sync=True)
    gpu_count = traitlets.Int(0).tag(sync=True)
    title = traitlets.Dict().tag(sync=True)
    environment: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    captured = traitlets.Dict().tag(sync=True)
    checks = traitlets.Dict().tag(sync=True)
    problems = traitlets.Dict().tag(sync=True)
    advice: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    global_batch = traitlets.Float(0.0).tag(sync=True)
    magic = traitlets.Unicode("").tag(sync=True)
    cell = traitlets.Unicode("").tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    place = traitlets.Dict().tag(sync=True)
    answered = traitlets.Int(0).tag(sync=True)

    #: The magic that the form writes, the variable that it gives the job to, and words of the line that it keeps.
    magic_word = "%%distributed"
    variable = "job"
    kept: Sequence[str] = ()
    #: Seconds that an answer waits for a cluster of which nothing is known yet.
    patience = 1.0

    def __init__(self, subject: Subject, given: Defaults) -> None:
        super().__init__()
        self._subject = subject
        self._variables: dict[str, str] = {}
        self._spoken: list[Advice] = []
        self._quiet = False
        self._history = history.past_jobs()
        self.capture()
        self._begin(given)
        self.observe(self._changed, names=self.chosen())
        self.recompute()

    @classmethod
    def chosen(cls) -> list[str]:
        """Return the names of the traits that the page sets."""
        return cls.class_trait_names(chosen=True)

    # ---- beginning ----

    def _begin(self, given: Defaults) -> None:
        self.choices = {
            "sizes": list(offered.sizes()),
            "catalogue_date": str(azure.catalogue_date()),
            "backends": offered.backends(),
            "clusters": offered.clusters(),
            "durations": offered.durations(),
            "most_restarts": MOST_RESTARTS,
            "chosen": self.chosen(),
        }
        for name in self.chosen():
            if name not in _WORKED_OUT:
                setattr(self, name, getattr(given, name))
        self.name = given.name or self._look.name
        self._begin_processes(given.process_count_per_node)
        self.distributed_backend = given.distributed_backend or offered.likely_backend(
            self.choices["backends"], self.training.wanted_backend(), self.process_count
        )
        self._variables = dict(given.environment_variables)
        self.environment = wording.environment(self._variables)

    def _begin_processes(self, asked: int | Literal["auto"] | None) -> None:
        """Take what was asked for; else one process per GPU, and two where there is none but several cores."""
        self.automatic = asked == "auto" or (asked is None and self.gpus_per_node > 0)
        if asked is None or asked == "auto":
            asked = max(1, self.gpus_per_node) if self.automatic else min(2, cores())
        self.process_count_per_node = asked

    # ---- capture ----

    def capture(self) -> None:
        """Look at the code and capture it as a job would, to show what travels; a failure becomes a failed check."""
        self._look = self._subject.look()
        draft = self._look.draft
        self.title = {"function": self._look.function, "cell": self._look.cell, "file": self._look.file}
        self.captured = wording.captured(draft.captured if draft else (), known=self._look.known)

    @property
    def training(self) -> Training:
        """What is known of the training."""
        return self._look.training

    # ---- what follows from the choices ----

    @property
    def process_count(self) -> int:
        """World size."""
        return self.node_count * self.process_count_per_node

    @property
    def gpus_per_node(self) -> int:
        """GPUs that "one per GPU" means: those of the chosen size, else of the cluster's nodes; 0 without any."""
        if self.use_gpu == "no":
            return 0
        if self.vm_size:
            return azure.find(self.vm_size).whole_gpus
        return places.gpus_per_node(self.options()) if places.is_far(self.compute_target) else checks.gpus()

    @property
    def total(self) -> str:
        """The sum that the form is: "2 x 4 = 8 processes"."""
        return processes(self.node_count, self.process_count_per_node)

    def options(self) -> dict[str, Any]:
        """Return what ``submit`` gets, under the primary names."""
        return {
            "node_count": self.node_count,
            "process_count_per_node": self.process_count_per_node,
            "distributed_backend": self.distributed_backend,
            "compute_target": self.compute_target,
            "name": self.name.strip() or self._look.name,
            "environment_variables": dict(self._variables) or None,
            "max_run_duration_seconds": self.max_run_duration_seconds or None,
            "hang_timeout_seconds": self.hang_timeout_seconds or None,
            "max_restarts": self.max_restarts or None,
            "vm_size": self.vm_size or None,
            "price_per_hour": self.price_per_hour or None,
            "use_gpu": _USE_GPU[self.use_gpu],
            **self.data_options(),
            **{name: value for name, value in self.backend_options.items() if value not in (None, "")},
        }

    def _changed(self, change: traitlets.Bunch) -> None:
        if self._quiet:
            return
        with self._silence():
            if change["name"] == "process_count_per_node":
                self.automatic = False
            if change["name"] == "distributed_backend":
                self.backend_options = {}
            self._follow_gpus()
        self.recompute()

    def _follow_gpus(self) -> None:
        if self.automatic:
            self.process_count_per_node = max(1, self.gpus_per_node)

    @contextlib.contextmanager
    def _silence(self) -> Iterator[None]:
        before, self._quiet = self._quiet, True
        try:
            with self.hold_trait_notifications():
                yield
        finally:
            self._quiet = before

    def recompute(self) -> None:
        """Work out checks, advice and the magic from the choices. Changes nothing that the user chose."""
        self.look()
        with self.hold_trait_notifications():
            options = self.options()
            self.gpu_count = self.gpus_per_node
            self.checks = checks.run(self._look.draft, self._look.error, options, self.data_checks())
            self.problems = wording.problems(self.checks["items"])
            self._spoken = advise(self._request(), merged.sizes(), self._history)
            self.advice = [wording.advice(one) for one in self._spoken]
            self.global_batch = (self.training.batch_size or 0) * self.process_count
            shown = {
                **options,
                **self.readable_data(),
                "plugin_options": {k: v for k, v in self.backend_options.items() if v not in (None, "")},
            }
            self.magic = magics.line(shown, self.variable, self.magic_word, self.kept)
            self.cell = self._subject.cell(self.magic)
            self.answered += 1

    def look(self, *, fresh: bool = False) -> None:
        """Show what is known of the chosen cluster and the data now; looks elsewhere go on by themselves meanwhile."""
        self.place = places.shown(places.look(self.options(), self.patience, fresh=fresh))
        self.look_at_cost(rented(self.compute_target, self.vm_size), self.node_count)
        self.look_at_data(self.compute_target, self.node_count, self._look.working_directory, fresh=fresh)
        self.choices = {**self.choices, "clusters": offered.clusters()}  # one may have got a name meanwhile

    def _request(self) -> Request:
        training, nodes = self.training, rented(self.compute_target, self.vm_size)
        return Request(
            node_count=self.node_count,
            process_count_per_node=self.process_count_per_node,
            distributed_backend=self.distributed_backend,
            compute_target=self.compute_target,
            vm_size=azure.find(self.vm_size) if self.vm_size else None,
            use_gpu=_USE_GPU[self.use_gpu],
            name=self.name,
            code=training.code,
            batch_size=training.batch_size,
            learning_rate=training.learning_rate,
            learning_rate_name=training.rate_name,
            learning_rate_is_argument=training.rate_is_argument,
            scales_learning_rate=training.scales_rate,
            cores=cores(),
            gpus=checks.gpus(),
            bills=nodes.bills,
            rate=self.rate_words,
            interruptible=nodes.interruptible,
            nodes_exist=nodes.exist,
            max_run_duration_seconds=self.max_run_duration_seconds or None,
        )

    # ---- what the page asks for ----

    def apply(self, code: str) -> None:
        """Set the fields that one advice names, after a click on it; unknown codes do nothing."""
        chosen = next((one for one in self._spoken if one.code == code), None)
        if chosen is None:
            return
        change = dict(chosen.change)
        rates = change.pop("kwargs", None)
        with self._silence():
            if "process_count_per_node" in change:
                self.automatic = False
            for name, value in change.items():
                setattr(self, name, value)
            self._follow_gpus()
        if rates:
            self._subject.pass_rates(rates)
            self.capture()
        self.recompute()

    def set_environment(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Take all variables from the page; a value of None keeps the secret that is there."""
        kept = self._variables
        self._variables = {
            str(entry["name"]): kept.get(str(entry["name"]), "") if entry.get("value") is None else str(entry["value"])
            for entry in entries
            if entry.get("name")
        }
        self.environment = wording.environment(self._variables)
        self.recompute()

    def refresh(self) -> None:
        """Capture and check again, for a function that uses variables which changed since."""
        self._history = history.past_jobs()
        self.capture()
        self.look(fresh=True)
        self.recompute()


class LaunchModel(FormModel):
    """The form of a function. ``submit`` starts a job with what the form shows."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **defaults: Any,
    ) -> None:
        self._call = FunctionSubject(function, args, kwargs or {})
        super().__init__(self._call, presets.read(defaults))

    def submit(self) -> Any:
        """Start a job with what the form shows and return its handle; None when it was refused.

        ``status`` then says so in one sentence.
        """
        from distdl_jupyter import client

        self.status = {"level": "busy"}
        self.answered += 1
        options = {name: value for name, value in self.options().items() if value is not None}
        try:
            job = client.submit(self._call.function, self._call.args, self._call.kwargs, **options)
        except (DistDLError, OSError) as error:
            self.status = {"level": "error", "text": str(error)}
            return None
        except Exception as error:
            self.status = {"level": "error", "text": f"{type(error).__name__}: {error}"}
            raise
        self.status = {"level": "ok", "name": job.spec.name, "job": job.id}
        return job
