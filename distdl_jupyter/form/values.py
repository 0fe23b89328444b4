"""Convert form values to options of ``submit`` and back. Pure functions."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from distdl_jupyter import azure
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import data, registry
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.options import OPTIONS, check_options, resolve
from distdl_jupyter.form.schema import DataRow, FormValues
from distdl_jupyter.jobs import jobspec

#: Fields of the form that are arguments of ``sweep``, under the same names.
SWEEP_ARGUMENTS = ("trials", "metric", "parallel")
#: The value of the option ``use_gpu`` for each choice in the form.
USE_GPU = {"": None, "yes": True, "no": False}
#: URL prefixes of stores that can list a folder, so that each node can receive a part of it.
_LISTABLE_PREFIXES = ("blob://", "s3://", "gs://")
#: A query parameter of a shared access signature.
_SIGNATURE = re.compile(r"[?&](?:sig|se|sp|sv|x-(?:amz|goog)-[a-z-]+)=", re.IGNORECASE)
#: The text that replaces the query with a shared access signature.
_SIGNATURE_MASK = "?sig=\N{BULLET}\N{BULLET}\N{BULLET}"


def list_other_options() -> list[str]:
    """Return the options of a job that have no separate control in the form."""
    fields = {*FormValues.__struct_fields__, "environment_variables"}
    return [name for name, option in OPTIONS.items() if option.is_in_form and name not in fields]


def list_form_options() -> set[str]:
    """Return the primary names of all options that the form can show."""
    return {*(name for name, option in OPTIONS.items() if option.is_in_form), *jobspec.list_option_names("backends")}


def from_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of FormValues and the environment variables for options under any of their names.

    Raises InvalidSpec for an invalid option.
    """
    primary = {name: value for name, value in resolve(options, list_form_options()).items() if value is not None}
    common = check_options(primary)
    cluster_configs.find(common.get("compute_target", "local"))
    values = {name: common[name] for name in FormValues.__struct_fields__ if name in common}
    preset: dict[str, Any] = {}
    if "distributed_backend" in common:
        values["distributed_backend"], preset = split_label(registry.resolve_label(common["distributed_backend"]))
    backend_option_names = jobspec.list_option_names("backends")
    values["backend_options"] = preset | {name: primary[name] for name in primary if name in backend_option_names}
    values["use_gpu"] = next(text for text, setting in USE_GPU.items() if setting is common.get("use_gpu"))
    values["data"] = tuple(_list_data_rows(common.get("data")))
    values["outputs"] = mask_signature(str(primary.get("outputs") or ""))
    values["other_options"] = {
        name: ",".join(common[name]) if OPTIONS[name].is_repeatable else primary[name]
        for name in list_other_options()
        if name in common
    }
    if "vm_size" in common:
        values["vm_size"] = azure.find_size(common["vm_size"]).name
    if "price_per_hour" in common:
        values["price_per_hour"] = str(common["price_per_hour"])
    return values, common.get("environment_variables", {})


def to_options(values: FormValues, variables: Mapping[str, str], default_name: str) -> dict[str, Any]:
    """Return the arguments of ``submit`` under their primary names; None means the default."""
    return {
        **{name: getattr(values, name) or None for name in OPTIONS if name in FormValues.__struct_fields__},
        **{name: _parse_option(name, values.other_options.get(name)) for name in list_other_options()},
        "name": values.name.strip() or default_name,
        "environment_variables": dict(variables) or None,
        "use_gpu": USE_GPU[values.use_gpu],
        "metrics_from_output": None if values.metrics_from_output else False,
        "data": [f"{name}={address}" for name, address in list_addresses(values.data)] or None,
        "outputs": values.outputs.strip() or None,
        **get_backend_options(values),
    }


def _parse_option(name: str, value: Any) -> Any:
    """Return the value of an option that was entered as text, or None if it is empty; lists are comma-separated."""
    if isinstance(value, str):
        value = tuple(filter(None, map(str.strip, value.split(",")))) if OPTIONS[name].is_repeatable else value.strip()
    return None if value in ("", ()) else value


def get_backend_options(values: FormValues) -> dict[str, Any]:
    """Return the options of the backend that have a value."""
    return {name: value for name, value in values.backend_options.items() if value not in (None, "")}


def get_sweep_arguments(values: FormValues) -> dict[str, Any]:
    """Return the arguments of ``sweep`` except the parameters and the options of its trials."""
    arguments = {name: getattr(values, name) for name in SWEEP_ARGUMENTS} | {"metric": values.metric.strip()}
    return {name: value for name, value in arguments.items() if value}


def split_label(label: str) -> tuple[str, dict[str, Any]]:
    """Return the base label of a label, and the options that the label sets: ("torch", {"transport": "nccl"}).

    Raises InvalidSpec for an unknown label.
    """
    plugin, _ = registry.load_backend(label, {})
    labels = registry.map_labels()
    name = labels.get(label, label)
    return (name, dict(plugin.labels.get(label, {}))) if name in labels and label != name else (label, {})


# data -------------------------------------------------------------------------------------------------


def _list_data_rows(option: Any) -> Iterator[DataRow]:
    """Yield the rows for a value of ``data=``. Raises InvalidSpec if it has no names and addresses.

    A source that cannot be parsed becomes a row with its text unchanged, except that a signature is masked.
    """
    for name, address in data.list_pairs(option):
        try:
            source = data.parse_source(name, address)
        except InvalidSpec:
            yield DataRow(name, mask_signature(str(address)))
        else:
            yield DataRow(source.name, source.address, source.shard, source.mode)


def mask_signature(address: str) -> str:
    """Return an address with its shared access signature masked; such an address is still rejected."""
    return address.partition("?")[0] + _SIGNATURE_MASK if _SIGNATURE.search(address) else address


def list_addresses(rows: Iterable[DataRow]) -> Iterator[tuple[str, str]]:
    """Yield the name and the address, with its ``?`` options, of each row that is not empty."""
    for row in rows:
        text, name = row.address.strip(), row.name.strip()
        query = "&".join((["shard"] if row.shard else []) + (["mode=mount"] if row.mode == "mount" else []))
        if query and text.startswith(_LISTABLE_PREFIXES):
            text += f"{'&' if '?' in text else '?'}{query}"
        if text or name:
            yield name or "data", text


def list_valid_data(rows: Iterable[DataRow]) -> list[str]:
    """Return the value of ``data=`` for the valid rows."""
    texts = []
    for name, address in list_addresses(rows):
        with contextlib.suppress(InvalidSpec):
            data.parse_source(name, address)
            texts.append(f"{name}={address}")
    return texts
