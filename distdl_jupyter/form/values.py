"""The values of the form as the options of ``submit``, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distdl_jupyter import azure
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry
from distdl_jupyter.core.aliases import resolve
from distdl_jupyter.core.options import ABOUT, checked
from distdl_jupyter.form import datarows
from distdl_jupyter.form.schema import FormValues

#: The fields of a sweep, with their names in the call.
PLAN = ("trials", "metric", "parallel")
USE_GPU = {"": None, "yes": True, "no": False}


def other_options() -> list[str]:
    """Return the options of a job without their own control in the form."""
    fields = {*FormValues.__struct_fields__, "environment_variables"}
    return [name for name, about in ABOUT.items() if about.in_form and name not in fields]


def names_in_form() -> set[str]:
    """Return the primary names of all options that the form can show."""
    return {*(name for name, about in ABOUT.items() if about.in_form), *_names_of_backend_options()}


def _names_of_backend_options() -> set[str]:
    names = set(registry.backend_labels().values())
    return {option.name for name in names for option in registry.options("backends", name)}


def from_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of FormValues and the environment variables for options under any of their names.

    Raises InvalidSpec for an invalid option.
    """
    primary = {name: value for name, value in resolve(options, names_in_form()).items() if value is not None}
    common = checked(primary)
    cluster_configs.find(common.get("compute_target", "local"))
    values = {name: common[name] for name in FormValues.__struct_fields__ if name in common}
    preset: dict[str, Any] = {}
    if "distributed_backend" in common:
        values["distributed_backend"], preset = split_label(registry.backend_label(common["distributed_backend"]))
    values["backend_options"] = preset | {
        name: primary[name] for name in _names_of_backend_options() if name in primary
    }
    values["use_gpu"] = next(text for text, needed in USE_GPU.items() if needed is common.get("use_gpu"))
    values["data"] = tuple(datarows.rows(common.get("data")))
    values["outputs"] = datarows.unsigned(str(primary.get("outputs") or ""))
    values["other_options"] = {
        name: ",".join(common[name]) if ABOUT[name].repeats else primary[name]
        for name in other_options()
        if name in common
    }
    if "vm_size" in common:
        values["vm_size"] = azure.find(common["vm_size"]).name
    if "price_per_hour" in common:
        values["price_per_hour"] = str(common["price_per_hour"])
    return values, common.get("environment_variables", {})


def to_options(values: FormValues, variables: Mapping[str, str], default_name: str) -> dict[str, Any]:
    """Return the arguments of ``submit`` under their primary names; None for those with their default."""
    return {
        **{name: getattr(values, name) or None for name in ABOUT if name in FormValues.__struct_fields__},
        **{name: _typed(name, values.other_options.get(name)) for name in other_options()},
        "name": values.name.strip() or default_name,
        "environment_variables": dict(variables) or None,
        "use_gpu": USE_GPU[values.use_gpu],
        "metrics_from_output": None if values.metrics_from_output else False,
        "data": [datarows.option(row) for row in values.data if not datarows.is_blank(row)] or None,
        "outputs": values.outputs.strip() or None,
        **backend_options(values),
    }


def _typed(name: str, value: Any) -> Any:
    """Return the typed value of an option, None if empty; lists are separated by commas."""
    if isinstance(value, str):
        value = tuple(filter(None, map(str.strip, value.split(",")))) if ABOUT[name].repeats else value.strip()
    return None if value in ("", ()) else value


def backend_options(values: FormValues) -> dict[str, Any]:
    """Return the options of the backend that have a value."""
    return {name: value for name, value in values.backend_options.items() if value not in (None, "")}


def plan_of(values: FormValues) -> dict[str, Any]:
    """Return the arguments of ``sweep`` besides the parameters and the options of its trials."""
    plan = {name: getattr(values, name) for name in PLAN}
    return {name: value for name, value in {**plan, "metric": values.metric.strip()}.items() if value}


def split_label(label: str) -> tuple[str, dict[str, Any]]:
    """Return the base label of ``label`` and the options that select it: ("torch", {transport: nccl}).

    Raises InvalidSpec for a label that no backend knows.
    """
    plugin, _ = registry.backend(label, {})
    labels = registry.backend_labels()
    name = labels.get(label, label)
    return (name, dict(plugin.labels.get(label, {}))) if name in labels and label != name else (label, {})
