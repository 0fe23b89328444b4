"""Data sources, output locations and packages of a job, as values and as addresses.

An address is ``blob://account/container/prefix`` (Azure Blob), ``s3://bucket/prefix`` (Amazon S3 or compatible),
``gs://bucket/prefix`` (Google Cloud Storage), ``https://host/path`` (one file, because web servers do not list files),
``shared:/path`` (a path that every node can read) or a path on this machine. The options ``?shard`` and ``?mode=mount``
may follow an address. Addresses do not contain secrets. Requirements that other machines cannot reach are rejected.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, unquote

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.worker.secret_patterns import mask

Mode = Literal["download", "mount"]
#: Prefix of the environment variable that contains a source's folder on the node; the source's name follows.
VARIABLE_PREFIX = "DISTDL_DATA_"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
#: learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"\$(root|web)|(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
#: docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html, cloud.google.com/storage/docs/buckets
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?")
#: Options of signed addresses in Azure, S3 and Google Cloud Storage.
_SIGNATURE_OPTION = re.compile(r"sig|sv|se|sp|x-(amz|goog)-.*", re.IGNORECASE)
_BLOB_FORM = "blob://account/container/prefix"
_ADDRESS_HINT = (
    'Use an address such as "blob://account/container/cifar10", "s3://bucket/cifar10", "gs://bucket/cifar10", '
    '"https://host/train.csv", "shared:/mnt/data" or "./data".'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """One source of data. The code finds its folder by ``name``.

    "blob" has ``account``, ``container`` and ``prefix`` ("" is the whole container). ``container`` is the bucket of
    "s3" and "gs", and the host and port of "https", whose ``prefix`` is the path of a file. The others have ``path``.
    With ``shard``, each node gets only its part of the files. ``mode`` "mount" reads over the network during training.
    """

    name: str
    scheme: Literal["blob", "s3", "gs", "https", "path", "shared"]
    account: str = ""
    container: str = ""
    prefix: str = ""
    path: str = ""
    mode: Mode = "download"
    shard: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that contains its folder in every rank."""
        return VARIABLE_PREFIX + self.name.upper()

    @property
    def is_stored(self) -> bool:
        """Whether it is in remote storage, not at a path."""
        return self.scheme not in ("path", "shared")

    @property
    def address(self) -> str:
        """The address without ``?`` options."""
        if self.is_stored:
            account = f"{self.account}/" if self.account else ""
            return f"{self.scheme}://{account}{self.container}" + (f"/{self.prefix}" if self.prefix else "")
        return f"shared:{self.path}" if self.scheme == "shared" else self.path

    @property
    def url(self) -> str:
        """The address with its ``?`` options; it contains no secret."""
        query = (["shard"] if self.shard else []) + (["mode=mount"] if self.mode == "mount" else [])
        return self.address + ("?" + "&".join(query) if query else "")


def _make_error(code: str, message: str, hint: str = "", field: str = "data") -> InvalidSpec:
    return InvalidSpec(message, code=code, field=field, hint=hint)


def parse_sources(data: Any) -> tuple[DataSource, ...]:
    """Return the sources of ``data=``: a dict of names and addresses, a list of ``name=address``, or a string.

    An address without a name is named ``data``; spaces separate addresses in a string. Raises InvalidSpec.
    """
    parsed = tuple(parse_source(name, address) for name, address in list_pairs(data))
    names = [entry.name.lower() for entry in parsed]
    if duplicate := next((name for name in names if names.count(name) > 1), ""):
        text = f"Two data sources have the name {duplicate}."
        raise _make_error("data-name-twice", text, "Use names that differ in more than upper and lower case.")
    return parsed


def list_pairs(data: Any) -> list[tuple[str, Any]]:
    """Return the names and unparsed addresses of ``data=``. Raises InvalidSpec for any other value."""
    if isinstance(data, Mapping):
        return [(str(name), address) for name, address in data.items()]
    if isinstance(data, str | DataSource | None):
        data = data.split() if isinstance(data, str) else [data] if data else []
    if not isinstance(data, list | tuple):
        text = f"data must be a dict of names and addresses, not {data!r:.80}."
        raise _make_error("data-not-a-dict", text, 'Use a dict such as {"train": "blob://account/container/cifar10"}.')
    pairs: list[tuple[str, Any]] = []
    for entry in data:
        name, separator, address = str(entry).partition("=")
        if isinstance(entry, DataSource):
            pairs.append((entry.name, entry))
        else:
            pairs.append((name, address) if separator and _NAME.fullmatch(name) else ("data", str(entry)))
    return pairs


def parse_source(name: str, value: Any) -> DataSource:
    """Parse one source from its name and address. Raises InvalidSpec with an example of an address."""
    if not _NAME.fullmatch(name):
        text = f"{name!r} is not a valid name of a data source."
        raise _make_error("data-name-invalid", text, "Use letters, digits and underscores, starting with a letter.")
    if isinstance(value, DataSource):
        return value
    if not isinstance(value, str | os.PathLike):
        message = f"The data source {name} is a {type(value).__name__}, not an address."
        hint = 'Write a DataFrame to a folder with dataframe.write.parquet("/mnt/data"), and use "shared:/mnt/data".'
        raise _make_error("data-not-an-address", message, hint)
    text, query = str(value), dict[str, str]()
    if "://" in text or text.startswith("shared:"):
        text, _, options = text.partition("?")
        query = dict(parse_qsl(options, keep_blank_values=True))
    if any(_SIGNATURE_OPTION.fullmatch(key) for key in query):
        message = "The address of a data source must not contain a shared access signature, because it would be stored."
        hint = "Remove everything after the ? and sign in to Azure, or give the nodes their own credentials."
        raise _make_error("data-signature-in-address", message, hint)
    mode: Any = query.pop("mode", "download")
    shard = query.pop("shard", "no") not in ("0", "false", "no")
    if query or mode not in get_args(Mode):
        option = next(iter(query), f"mode={mode}")
        message = f"Unknown option {option!r} of a data source. Use one of: shard, mode=download, mode=mount."
        raise _make_error("data-option-unknown", message)
    return replace(_parse_address(text), name=name, mode=mode, shard=shard)


def _parse_address(text: str) -> DataSource:
    scheme: Any
    scheme, separator, rest = text.partition("://")
    if scheme == "blob" and separator:
        return parse_blob(text, "data")
    if text.startswith("shared:/"):
        return DataSource(name="data", scheme="shared", path=text.removeprefix("shared:"))
    if not separator and text.strip() and not text.startswith("shared:"):
        return DataSource(name="data", scheme="path", path=text)
    container, _, prefix = rest.partition("/")
    if hint := _find_blob_hint(text):
        raise _make_error("blob-web-address", f"{text!r} is the web address of Azure Blob data.", hint)
    if scheme not in ("s3", "gs", "https"):
        raise _make_error("data-address-invalid", f"{text!r} is not a valid data address.", _ADDRESS_HINT)
    if "@" in container:
        message = f"A {scheme}:// address must not contain a user or a password, because they would be stored."
        raise _make_error("data-password-in-address", message, "Remove everything before the @.")
    pattern, noun = (_HOST, "host") if scheme == "https" else (_BUCKET, "bucket")
    if not pattern.fullmatch(container):
        raise _make_error("data-container-name-invalid", f"{container!r} is not a valid {noun} name.", _ADDRESS_HINT)
    if scheme == "https" and not prefix.rpartition("/")[2]:
        message = f"{text!r} does not name a file, and web servers do not list files."
        hint = "Use https://host/path for each file, or s3://, gs:// or blob://."
        raise _make_error("https-without-file", message, hint)
    prefix = (unquote(prefix) if scheme == "https" else prefix).strip("/")
    return DataSource(name="data", scheme=scheme, container=container, prefix=prefix)


def _find_blob_hint(text: str) -> str:
    """Return the ``blob://`` form of a blob's web address, which users often paste, or "" for another address."""
    match = re.fullmatch(r"https://([a-z0-9]{3,24})\.blob\.[^/]+/([^/?]+)/?([^?]*)(\?.*)?", text)
    return f'Write "blob://{match[1]}/{match[2]}{match[3] and "/"}{unquote(match[3])}".' if match else ""


def parse_blob(text: str, field: str) -> DataSource:
    """Return the source of ``blob://account/container/prefix``, with ``field`` as its name. Raises InvalidSpec."""
    account, _, rest = text.removeprefix("blob://").partition("/")
    container, _, prefix = rest.partition("/")
    if not text.startswith("blob://"):
        hint = _find_blob_hint(text) or f"Use the form {_BLOB_FORM}."
        raise _make_error("blob-address-invalid", f"{text!r} is not a valid Azure Blob address.", hint, field)
    if not _ACCOUNT.fullmatch(account):
        message = f"{account!r} is not a valid storage account name."
        hint = f"Use 3 to 24 lowercase letters and digits: {_BLOB_FORM}."
        raise _make_error("blob-address-invalid", message, hint, field)
    if not _CONTAINER.fullmatch(container):
        hint = f"Use 3 to 63 lowercase letters, digits and single dashes: {_BLOB_FORM}."
        raise _make_error("blob-address-invalid", f"{container!r} is not a valid container name.", hint, field)
    return DataSource(name=field, scheme="blob", account=account, container=container, prefix=prefix.strip("/"))


# packages ---------------------------------------------------------------------------------------------

#: The options that request packages.
PACKAGE_OPTIONS = ("pip_packages", "conda_packages", "requirements")
#: The programs that install conda packages; the first available one is used.
CONDA_PROGRAMS = ("mamba", "micromamba", "conda")
#: The block of a script's metadata (packaging.python.org/en/latest/specifications/inline-script-metadata).
SCRIPT_METADATA = re.compile(r"(?m)^# /// script\s*$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
#: An address with its scheme, user and password, and host.
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://(?:([^\s;\"'/]*)@)?([^\s;\"'/:]*)[^\s;\"']*", re.IGNORECASE)
#: A line of requirements that only this machine can read.
_LOCAL_REQUIREMENT = re.compile(r"[./~]|file:|-[erc]\b|--(editable|requirement|constraint)\b")
_INCLUDE = re.compile(r"\s*(?:-r|--requirement)[\s=]\s*(?P<path>[^\s#]+)")
_FORMATS_HINT = "Use requirements.txt, pylock.toml, or a script with inline dependencies (PEP 723)."


def check_packages(value: Any, field: str) -> tuple[str, ...] | None:
    """Return requirements such as ``numpy>=2``, or None if there are none. Raises InvalidSpec, also for passwords."""
    if isinstance(value, str):  # as typed on a magic line
        value = value.replace(",", " ").split()
    is_list = isinstance(value, list | tuple) and all(isinstance(package, str) for package in value)
    packages = tuple(filter(None, map(str.strip, value))) if is_list else ()
    if not is_list or any(package.startswith("-") or "\n" in package for package in packages):
        text = f"{field} must be a list of packages, not {value!r}."
        hint = 'Use a list such as ["numpy>=2", "webdataset==1.0.2"].'
        raise InvalidSpec(text, code="packages-not-a-list", field=field, hint=hint)
    _reject_passwords("\n".join(packages), field)
    return packages or None


def is_lock_file(text: str) -> bool:
    """Return whether requirements are a lock file (PEP 751)."""
    return re.search(r"(?m)^lock-version\s*=", text) is not None


def read_requirements(source: str, folder: Path) -> str:
    """Return the text of a requirements file, with a newline at its end; "" for none. Raises InvalidSpec.

    A path is relative to ``folder``; a ``source`` that ends with a newline is already the text.
    """
    text = source if not source or source.endswith("\n") else _read_file(folder / Path(source).expanduser(), set())
    _reject_passwords(text, "requirements")
    if is_lock_file(text):
        return text
    text = re.sub(r"(?m)(^|\s)#.*$", "", re.sub(r"\\\r?\n", " ", text))  # joins continued lines
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if local := next((line for line in lines if _LOCAL_REQUIREMENT.match(line)), ""):
        hint = "Modules in the notebook's folder are sent automatically. Otherwise, use a wheel that nodes can load."
        message = f"requirements contains {local!r}, which does not exist on other machines."
        raise _make_error("requirements-local-path", message, hint, "requirements")
    return "".join(f"{line}\n" for line in lines)


def _read_file(path: Path, visited: set[Path]) -> str:
    """Return the requirements in a file and in those that it includes, each file once."""
    visited.add(path.resolve())
    if path.suffix in (".lock", ".yml", ".yaml"):
        message = f"requirements cannot be {path.name}, because only another tool reads that file."
        hint = f"{_FORMATS_HINT} For conda, list the packages in conda_packages."
        raise _make_error("requirements-file-of-other-tool", message, hint, "requirements")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        message = f"requirements cannot be read from {path}: {reason}."
        raise _make_error("requirements-unreadable", message, _FORMATS_HINT, "requirements") from None
    if path.suffix == ".py":
        return parse_script(text, path.name)
    lines: list[str] = []
    for line in text.rstrip("\n").split("\n"):
        include = _INCLUDE.match(line)
        if include is None:
            lines.append(f"{line}\n")
        elif (included := path.parent / include["path"]).resolve() not in visited:
            lines.append(_read_file(included, visited))
    return "".join(lines)


def parse_script(text: str, name: str) -> str:
    """Return the dependencies that a script declares, one per line. Raises InvalidSpec."""
    import tomllib  # few jobs need it

    match, reason = SCRIPT_METADATA.search(text), "it has no inline dependencies (PEP 723)"
    if match is not None:
        try:
            metadata = tomllib.loads(re.sub("(?m)^# ?", "", match["content"]))
            return "".join(f"{dependency}\n" for dependency in metadata.get("dependencies", []))
        except (tomllib.TOMLDecodeError, TypeError) as error:
            reason = str(error)
    hint = 'Begin it with the lines # /// script, # dependencies = ["numpy"], # ///.'
    raise _make_error(
        "script-without-dependencies", f"requirements cannot be read from {name}: {reason}.", hint, "requirements"
    )


def _reject_passwords(text: str, field: str) -> None:
    """Raise InvalidSpec for an address with a password, because requirements are stored and shown."""
    for match in _ADDRESS.finditer(text):
        scheme, user, host = match.groups(default="")
        if ":" in user or (user and not scheme.endswith("ssh")) or mask(match[0]) != match[0]:
            text = f"{field}: the address at {host} contains a password, which would be stored with the job."
            is_conda = field == "conda_packages"
            variable, file = ("CONDA_CHANNELS", ".condarc") if is_conda else ("PIP_INDEX_URL", "pip.conf or .netrc")
            hint = f"Set the environment variable {variable}, or use {file} on the nodes."
            raise InvalidSpec(text, code="requirements-password", field=field, hint=hint)


def list_installers() -> list[str]:
    """Return the package installers of this machine: pip, uv and the programs in ``CONDA_PROGRAMS``."""
    pip = ["pip"] if importlib.util.find_spec("pip") else []
    return pip + [name for name in ("uv", *CONDA_PROGRAMS) if find_program(name)]


def find_program(name: str) -> str | None:
    """Return the path of a program on the PATH, next to this interpreter, or where uv installs itself, or None."""
    folders = (str(Path(sys.executable).parent), str(Path("~/.local/bin").expanduser()))
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *folders]))
