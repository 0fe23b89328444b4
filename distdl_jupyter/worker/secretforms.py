"""Secrets that are known by their form: tokens of well-known services, signatures, passwords in URLs and assignments.

``spans`` finds them, ``mask`` replaces them. It knows no values and reads nothing but the text that it is given. A log
is asked in blocks of thousands of lines: none of its lines is looked at unless one of a few words stands in the block.
What looks alike and is none (``tokens=1024``, ``eos_token='</s>'``, ``time per token: 12.3ms``) stays readable.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

MASK = "•••"

Span = tuple[int, int]
#: What may stand between the name of a secret and its value: ``"name": "``, ``name=``, ``["NAME"] = '``.
_BETWEEN = r"""(?P<between>\\?["']?\]?[ \t]*[=:][ \t]*(?:[rbuf]{1,2}(?=["']))?(?P<quote>\\?["'])?)"""
_VALUE = r"""(?P<secret>[^\s"',;()\[\]{}<>|&\\`•]{8,})(?P<behind>[(\[]?)"""
_NUMBER = re.compile(r"[+-]?[\d.,_:]+(?:e[+-]?\d+)?[a-z/%µ]*\Z")
_REFERENCE = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+\Z")
_PATH = re.compile(r"(?:[~.]{0,2}/[\w.~-]+(?:/[\w.~-]*)+|[a-z]:/.*|\$.*|%.*%)\Z")
_LETTER, _DIGIT = re.compile(r"[a-z]"), re.compile(r"\d")


def _known(pattern: str) -> str:
    """A token that begins with its service's mark and stands alone."""
    return rf"(?<![a-z0-9_])(?P<secret>{pattern})"


def _named(name: str) -> str:
    return rf"(?:{name}){_BETWEEN}{_VALUE}"


def _flagged(name: str) -> str:
    """``--password VALUE`` on a command line."""
    return rf"--[a-z0-9-]*{name} +(?P<secret>[^\s-][^\s]{{7,}})"


#: What a value, or a long token, has before it. One search for a rare character costs less than one for each word.
_GATES = {
    "assigned": r"=[ \t]*[^\s,;]{8}",
    "told": r":[ \t]*[^\s,;]{8}",
    "flag": r"--[a-z]",
    "_": r"_[a-z0-9_]{20}",
    "-": r"-[a-z0-9_-]{10}",
}
_KEYS = r"(?:api|access|account|secret|private|shared|subscription|storage|master|client)[_ -]?key"
#: By what must be there before any word is looked for: (the word without which the form cannot be there, the form, both
#: in lower case; what else must hold of a match).
_FORMS: dict[tuple[str, ...], tuple[tuple[str, str, str], ...]] = {
    (): (
        ("://", r"://[^\s/:@'\"<>]*:(?P<secret>[^\s/@'\"<>•]+)@(?=[^\s@])", ""),
        ("authorization", rf"authorization{_BETWEEN}(?:basic|token) +(?P<secret>[a-z0-9+/=_-]{{8,}})", ""),
        ("bearer ", r"\bbearer +(?P<secret>[a-z0-9._~+/=-]{16,})", "mixed"),
        ("eyj", _known(r"eyj[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}(?:\.[a-z0-9_-]*)?"), ""),
        ("akia", _known(r"akia[0-9a-z]{16}(?![0-9a-z])"), ""),
        ("asia", _known(r"asia[0-9a-z]{16}(?![0-9a-z])"), "mixed"),
        ("aiza", _known(r"aiza[0-9a-z_-]{35}"), ""),
        ("private key-", r"-----begin [a-z0-9 ]*private key-----(?P<secret>.+?)(?=-----end |\Z)", "block"),
    ),
    ("_",): (
        ("hf_", _known(r"hf_[a-z0-9]{20,}"), ""),
        ("gh", _known(r"gh[pousr]_[a-z0-9]{20,}"), ""),
        ("_pat_", _known(r"github_pat_[a-z0-9_]{20,}"), ""),
    ),
    ("-",): (
        ("glpat-", _known(r"glpat-[a-z0-9_-]{16,}"), ""),
        ("sk-", r"(?<![a-z0-9_-])(?P<secret>sk-[a-z0-9_-]{20,})", "mixed"),
        ("xox", _known(r"xox[abprs]-[a-z0-9-]{10,}"), "mixed"),
    ),
    ("assigned", "told", "flag"): (
        ("sig=", r"(?<![a-z0-9_])sig=(?P<secret>[a-z0-9%+/=_-]{16,})", ""),
        ("passw", _named(r"passw(?:or)?d"), "password"),
        ("passw", _flagged("passw(?:or)?d"), "password"),
        ("passphrase", _named("passphrase"), "password"),
        ("pwd", _named(r"(?<![a-z])pwd"), "password"),
        ("secret", _named(r"secret"), "password"),
        ("secret", _flagged("secret"), "token"),
        ("token", _named(r"token"), "token"),
        ("token", _flagged("token"), "token"),
        ("key", _named(_KEYS), "token"),
        ("key", r"key[ :=]+(?P<secret>[0-9a-f]{40})(?![0-9a-z])", ""),
        ("key", _flagged("(?:api|access|account|secret)[_-]?key"), "token"),
        ("signature", _named(r"sharedaccesssignature"), ""),
        ("credential", _named(r"credentials?"), "token"),
    ),
}


def mask(text: str) -> str:
    """Return the text with each secret that is known by its form replaced by ``MASK``."""
    found = spans(text)
    return replaced(text, found) if found else text


def spans(text: str, *, whole: bool = False) -> list[Span]:
    """Return where secrets stand, in order and without overlaps; ``whole``: with what makes them known as such."""
    low = _lower(text)
    found: list[Span] = []
    for gates, forms in _FORMS.items():
        if not gates or any(_compiled(_GATES[gate]).search(low) for gate in gates):
            for word, form, rule in forms:
                if word in low:
                    found += _found(low, form, rule, 0 if whole else "secret")
    return merged(found) if found else found


def replaced(text: str, found: list[Span]) -> str:
    """Return the text with the spans, which are in order, replaced by ``MASK``."""
    parts, at = [], 0
    for begin, end in found:
        parts += [text[at:begin], MASK]
        at = end
    return "".join((*parts, text[at:]))


def merged(found: list[Span]) -> list[Span]:
    """Return the spans in order, those that overlap as one."""
    found.sort()
    out = found[:1]
    for begin, end in found[1:]:
        if begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((begin, end))
    return out


def _lower(text: str) -> str:
    """Return the text with ASCII letters in lower case, each character in its place."""
    if text.isascii():
        return text.lower()
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


@functools.cache
def _compiled(form: str) -> re.Pattern[str]:
    return re.compile(form, re.DOTALL if "private key-" in form else 0)


def _found(low: str, form: str, rule: str, part: int | str) -> Iterator[Span]:
    holds = _RULES.get(rule)
    for match in _compiled(form).finditer(low):
        if holds is None or holds(match):
            yield match.span(part)


def _is_value(match: re.Match[str]) -> bool:
    """Say whether an assigned text is a value and no number, path, call or other name of a program."""
    fields = match.groupdict()
    value = fields["secret"]
    if fields.get("behind") or _NUMBER.match(value) or _PATH.match(value) or value.startswith(("•", "*", "...", "$")):
        return False
    return bool(fields.get("quote")) or not _REFERENCE.match(value)


def _is_password(match: re.Match[str]) -> bool:
    if not _is_value(match):
        return False
    fields = match.groupdict()
    # "password: required" says something of a password, "password=required" could be one.
    says = not fields.get("quote") and ":" in (fields.get("between") or "")
    return not says or _DIGIT.search(fields["secret"]) is not None


def _is_token(match: re.Match[str]) -> bool:
    return _is_value(match) and _is_mixed(match)


def _is_mixed(match: re.Match[str]) -> bool:
    return _LETTER.search(match["secret"]) is not None and _DIGIT.search(match["secret"]) is not None


def _is_block(match: re.Match[str]) -> bool:
    return len(match["secret"].strip()) > 0


_RULES: dict[str, Callable[[re.Match[str]], bool]] = {
    "password": _is_password, "token": _is_token, "mixed": _is_mixed, "block": _is_block
}  # fmt: skip
