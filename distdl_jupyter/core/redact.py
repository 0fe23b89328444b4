"""Masks secrets in everything that is written about a job: known values, and text that looks like a secret.

A ``Redactor`` also masks the values of secret variables; code without one uses ``mask_text``.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import html
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.worker import secret_patterns
from distdl_jupyter.worker.secret_patterns import MASK, looks_secret

#: Minimum length of a secret; shorter values occur in many texts by chance.
MIN_SECRET_LENGTH = 6
#: Minimum characters at the end of an unfinished line that are not passed on yet, because a secret may begin there.
_MIN_DELAYED_LENGTH = 512
#: Text in the first and the last line of a private key, and at the start of these lines.
_KEY_MARKER, _BEGIN_MARKER, _END_MARKER = "PRIVATE KEY-----", "-----BEGIN ", "-----END "
#: Maximum number of lines of a private key; a begin without an end must not mask the whole log.
_MAX_KEY_LINES = 200
_ZERO_DIGITS = bytes.maketrans(b"123456789", b"000000000")
#: Python strings can contain a single surrogate, which is not a valid character.
_ERRORS = "surrogatepass"
#: Minimum characters of a block to use the cache of clean lines.
_MIN_CACHED_BLOCK = 2_000
#: Maximum number of cached lines and of cached metric names, and maximum mean size of cached lines in bytes.
_MAX_CACHED_LINES, _MAX_CACHED_NAMES, _MAX_MEAN_BYTES = 20_000, 10_000, 400
#: ``user:value`` as in HTTP basic authentication.
_USER_AND_VALUE = re.compile(r"[^\s:/@]{1,64}:([^\s:/@][^\s]{5,})")
#: Values of variables such as USE_AUTH or DB_AUTH, which are ordinary words in a log.
_SWITCHES = frozenset(("enabled", "disabled", "default", "required", "optional", "kerberos", "bearer", "digest",
                       "negotiate", "password", "oauth2", "public", "private", "unlimited"))  # fmt: skip


#: Returns a text with everything masked that matches a pattern of secrets.
mask_text = secret_patterns.mask


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable is a secret, by its name or by the pattern of its value."""
    return _has_secret_name(name, value) or mask_text(value) != value


def refuse_secrets(options: Mapping[str, Any]) -> None:
    """Raise InvalidSpec if an option of a cluster or backend contains a secret, because options are stored."""
    for name, value in options.items():
        if isinstance(value, str) and (masked := mask_text(value)) != value:
            masked_part = next(part for part in masked.split() if MASK in part)
            message = f"{name} contains a secret ({masked_part}), and options are stored with the job."
            hint = "Pass it as an environment variable instead."
            raise InvalidSpec(message, code="option-holds-secret", field=name, hint=hint)


def _has_secret_name(name: str, value: str) -> bool:
    """Return whether the name indicates a secret. A plural with a number, such as TOKENS=4096, is a count."""
    return looks_secret(name) and not (name.lower().endswith(("tokens", "keys")) and value.isdecimal())


class Redactor:
    """Masks the given values and all text that looks like a secret, including private keys over several calls.

    No pattern of secrets depends on a digit. Clean lines are therefore cached with each digit replaced by "0" and not
    searched again, which takes a third of the time for repetitive logs.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = sorted({variant for value in values for variant in _list_variants(value)}, key=len, reverse=True)
        #: Streams in the middle of a private key, with the maximum number of lines that may follow.
        self._open_keys: dict[Any, int] = {}
        self._mask_name = functools.lru_cache(_MAX_CACHED_NAMES)(self.mask_text)
        self._clean_lines: set[bytes] = set()
        self._zeroed_values = [_zero_digits(value) for value in self._values if "\n" not in value]
        self._multiline_values = [value for value in self._values if "\n" in value]

    @classmethod
    def from_variables(cls, environment: Mapping[str, str], secrets: Mapping[str, str]) -> Redactor:
        """Return a redactor for the values of ``secrets``, and of variables whose name looks secret."""
        values = [value for name, value in environment.items() if _has_secret_name(name, value)]
        return cls(value for value in (*values, *secrets.values()) if not _is_plain(value))

    def mask_text(self, string: str) -> str:
        """Return the text without secrets."""
        if len(string) > _MIN_CACHED_BLOCK and self._is_clean(string):
            return string
        for value in self._values:
            if value in string:
                string = string.replace(value, MASK)
        return mask_text(string)

    def _is_clean(self, text: str) -> bool:
        if _KEY_MARKER in text or any(value in text for value in self._multiline_values):
            return False
        if new := set(_zero_digits(text).split(b"\n")) - self._clean_lines:
            block = b"\n".join(new)
            has_value = any(value in block for value in self._zeroed_values)
            if has_value or secret_patterns.locate(block.decode("utf-8", _ERRORS)):
                return False
            if len(self._clean_lines) > _MAX_CACHED_LINES:
                self._clean_lines.clear()
            if len(block) < _MAX_MEAN_BYTES * len(new):
                self._clean_lines |= new
        return True

    def mask_data(self, document: Any) -> Any:
        """Return JSON data with the secrets in its strings masked."""
        if isinstance(document, str):
            return self.mask_text(document) if len(document) >= MIN_SECRET_LENGTH else document
        if isinstance(document, dict):
            return {self.mask_data(name): self._mask_entry(name, value) for name, value in document.items()}
        return type(document)(map(self.mask_data, document)) if isinstance(document, list | tuple) else document

    def _mask_entry(self, name: Any, value: Any) -> Any:
        is_secret = isinstance(name, str) and isinstance(value, str) and looks_secret(name)
        return MASK if is_secret and len(value) >= MIN_SECRET_LENGTH and "•" not in value else self.mask_data(value)

    def mask_event(self, type_: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of an event without secrets; ``mask_lines`` masks the text of log events."""
        if type_ == "handle":  # attaching to a job needs its exact values
            return fields
        if type_ != "metric":
            return {name: self.mask_data(value) for name, value in fields.items()}
        return {**fields, "values": {self._mask_name(name): value for name, value in fields["values"].items()}}

    def mask_lines(self, stream: Any, block: str) -> str:
        """Return lines of one stream without secrets, including a private key that spans several calls."""
        if stream in self._open_keys:
            key, end, rest = block.partition(_END_MARKER)
            self._open_keys[stream] -= key.count("\n") + 1
            if end or self._open_keys[stream] <= 0:
                del self._open_keys[stream]
            block = f"{MASK}\n{end}{rest}" if end else MASK
        if _KEY_MARKER in block and block.rfind(_BEGIN_MARKER) > block.rfind(_END_MARKER):
            self._open_keys[stream] = _MAX_KEY_LINES
        return self.mask_text(block)

    def find_safe_end(self, line: str) -> int:
        """Return how many characters of an unfinished line precede a possible secret and can be passed on."""
        sizes = [len(value) for value in self._values]
        stop = max(0, len(line) - max([_MIN_DELAYED_LENGTH, *sizes]))
        secrets = [(start, start + size) for value, size in zip(self._values, sizes, strict=True)
                   if (start := line.find(value, max(0, stop - size), stop + size)) >= 0]  # fmt: skip
        return min(
            (begin for begin, end in (*secret_patterns.locate(line, whole=True), *secrets) if begin < stop < end),
            default=stop,
        )

    def mask_unfinished(self, line: str) -> str:
        """Return an unfinished line for display, without secrets and without the beginning of a known secret."""
        masked = self.mask_text(line)
        for value in self._values:
            for size in range(min(len(value) - 1, len(masked)), 3, -1):
                if masked.endswith(value[:size]):
                    return masked[:-size] + MASK
        return masked


def _zero_digits(text: str) -> bytes:
    return text.encode("utf-8", _ERRORS).translate(_ZERO_DIGITS)


def _list_variants(value: str) -> set[str]:
    """Return the forms of a value in logs, also of its long lines and of the value in ``user:value``."""
    lines = [line.strip() for line in value.splitlines()] if "\n" in value else []
    variants = {value, value.strip(), *(line for line in lines if len(line) >= 16)}
    if (pair := _USER_AND_VALUE.fullmatch(value)) is not None:
        variants.add(pair[1])
    in_json = json.dumps(value)[1:-1]
    variants |= {in_json, json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1], ascii(value)[1:-1]}
    quoted = {quote(value, safe=""), quote(value), quote_plus(value)}
    variants |= quoted | {re.sub("%..", lambda match: match[0].lower(), text) for text in quoted}
    # HTML and XML, with and without quotes, by name and by number; JSON within an HTML script.
    plain, escaped = html.escape(value, quote=False), html.escape(value)
    numbered = escaped.replace("&#x27;", "&#39;")
    variants |= {plain, plain.replace('"', "&quot;"), escaped, escaped.replace("&#x27;", "&apos;"), numbered}
    variants |= {numbered.replace("&quot;", "&#34;"), escaped.encode("ascii", "xmlcharrefreplace").decode()}
    variants |= {in_json.replace("/", "\\/"), re.sub("[<>&']", lambda match: f"\\u{ord(match[0]):04x}", in_json)}
    if len(value) >= 8:
        raw = value.encode("utf-8", _ERRORS)
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            variants.add(encode(raw).decode().rstrip("="))
            # The letters that depend on the value only, if ``offset`` bytes of a group of three precede it.
            for offset in range(3):
                letters = encode(bytes(offset) + raw).decode()
                variants.add(letters[-(-offset * 8 // 6) : (offset + len(raw)) * 8 // 6])
    return {variant for variant in variants if len(variant) >= MIN_SECRET_LENGTH}


def _is_plain(value: str) -> bool:
    """Return whether a value cannot be a secret: too short, a switch, or the path of an existing file."""
    return (
        len(value) < MIN_SECRET_LENGTH
        or value.lower() in _SWITCHES
        or (value.startswith(("/", "~", ".")) and Path(value).expanduser().exists())
    )


def mask_spec(job: JobSpec, redactor: Redactor) -> JobSpec:
    """Return the spec to store. Its code, command and arguments are only for display; the job runs an unmasked copy."""
    source = dataclasses.replace(
        job.source, code=redactor.mask_text(job.source.code), command=redactor.mask_text(job.source.command),
    )  # fmt: skip
    captured = tuple(dataclasses.replace(entry, detail=redactor.mask_text(entry.detail)) for entry in job.captured)
    arguments = mask_arguments(job.script_arguments, redactor.mask_text)
    return dataclasses.replace(
        job, name=redactor.mask_text(job.name), source=source, captured=captured,
        findings=redactor.mask_data(job.findings), script_arguments=arguments,
    )  # fmt: skip


def find_masked_arguments(masked: Iterable[str], arguments: Iterable[Any]) -> dict[str, str]:
    """Return the command-line arguments that are masked in ``masked``; for ``--flag=value``, only the value."""
    values = {}
    for index, (masked_argument, argument) in enumerate(zip(masked, map(str, arguments), strict=False)):
        if masked_argument != argument and MASK in masked_argument:
            is_flag = argument.startswith("-") and "=" in argument
            values[f"argument {index}"] = argument.partition("=")[2] if is_flag else argument
    return values


def mask_arguments(argv: Iterable[str], mask: Callable[[str], str] = mask_text) -> tuple[str, ...]:
    """Return command-line arguments without secrets, also if ``--token`` and its value are separate arguments."""
    masked: list[str] = []
    masks_next = False
    for argument in argv:
        flag, equals, value = argument.partition("=")
        is_secret_flag = flag.startswith("-") and looks_secret(flag.lstrip("-"))
        if masks_next and not argument.startswith("-"):
            masked.append(MASK)
        else:
            masked.append(f"{flag}={MASK}" if is_secret_flag and len(value) >= MIN_SECRET_LENGTH else mask(argument))
        masks_next = is_secret_flag and not equals
    return tuple(masked)
