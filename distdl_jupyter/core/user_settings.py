"""The settings of a user on one subject: a JSON file in Jupyter's configuration folder that only the user can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from distdl_jupyter.core import files
from distdl_jupyter.core.aliases import unknown
from distdl_jupyter.core.errors import DistDLError, InvalidSpec

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile(Generic[S]):
    """The file ``name`` with settings of the struct ``type``, whose fields all have defaults.

    ``allowed`` describes the valid values of a field, and ``secrets`` says where keys belong instead.
    """

    name: str
    type: type[S]
    allowed: Mapping[str, str]
    secrets: str

    @property
    def path(self) -> Path:
        """The path of the file."""
        from jupyter_core.paths import jupyter_config_dir

        return Path(jupyter_config_dir()) / self.name

    def read(self) -> S:
        """Return the settings, the defaults if there is no file. Raises DistDLError if it is broken."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=self.type)
        except FileNotFoundError:
            return self.type()
        except (OSError, ValueError) as error:
            raise DistDLError(
                f"Cannot read the settings in {self.path} ({type(error).__name__}).",
                code="settings-unreadable",
                hint="Correct or delete that file.",
            ) from None

    def changed(self, changes: Mapping[str, Any], subject: str, names: Sequence[str] = ()) -> S:
        """Return the settings with changes to some of ``names``, not stored; an empty value restores a default.

        ``subject`` is what the names are for. Raises InvalidSpec.
        """
        names = names or self.type.__struct_fields__
        for name in changes:
            if name not in names:
                text = unknown(name, names, "setting", f"for {subject}")
                raise InvalidSpec(text, code="setting-unknown", field=name, hint=self.secrets)
        values = msgspec.to_builtins(self.read()) | {name: str(value or "").strip() for name, value in changes.items()}
        try:
            return msgspec.convert({name: value for name, value in values.items() if value}, self.type, strict=False)
        except msgspec.ValidationError as error:
            name = str(error).rpartition(".")[2].rstrip("`")
            text = f"The value of {name} must be {self.allowed[name]}."
            raise InvalidSpec(text, code="setting-invalid", field=name) from None

    def write(self, settings: S) -> S:
        """Store settings and return them."""
        files.write(self.path, msgspec.to_builtins(settings))
        return settings
