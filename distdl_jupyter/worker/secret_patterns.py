"""Finds secrets in text by their form, or by the names of their variables.

The forms are tokens of well-known services, signatures, passwords in URLs, and assignments to names such as "password".
A log is passed in blocks of thousands of lines, so a pattern is searched only in blocks that contain its keyword.
Similar text that is not secret remains readable: ``tokens=1024``, ``eos_token='</s>'``, ``time per token: 12.3ms``.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path

MASK = "•••"

Span = tuple[int, int]
#: Text between the name of a secret and its value: ``"name": "``, ``name=``, ``["NAME"] = '``.
_SEPARATOR = r"""(?P<separator>\\?["']?\]?[ \t]*[=:][ \t]*(?:[rbuf]{1,2}(?=["']))?(?P<quote>\\?["'])?)"""
_VALUE = r"""(?P<secret>[^\s"',;()\[\]{}<>|&\\`•]{8,})(?P<suffix>[(\[]?)"""
_NUMBER = re.compile(r"[+-]?[\d.,_:]+(?:e[+-]?\d+)?[a-z/%µ]*\Z")
_REFERENCE = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+\Z")
_PATH = re.compile(r"(?:[~.]{0,2}/[\w.~-]+(?:/[\w.~-]*)+|[a-z]:/.*|\$.*|%.*%)\Z")
_LETTER, _DIGIT = re.compile(r"[a-z]"), re.compile(r"\d")


def _match_token(mark: str, rest: str) -> str:
    """Return a pattern for a token with a fixed prefix. The prefix precedes the lookbehind, because that is faster."""
    return rf"(?P<secret>{mark}(?<![a-z0-9_]{mark}){rest})"


def _match_name(name: str) -> str:
    return rf"(?:{name}){_SEPARATOR}{_VALUE}"


def _match_flag(name: str) -> str:
    """Return a pattern for an option such as ``--password VALUE`` on a command line."""
    return rf"--[a-z0-9-]*{name} +(?P<secret>[^\s-][^\s]{{7,}})"


#: Patterns that must match before the keywords of a group are searched. One rare character is found faster than words.
_GATES = {
    "assigned": r"=[ \t]*[^\s,;]{8}",
    "colon": r":[ \t]*[^\s,;]{8}",
    "flag": r"--[a-z]",
    "://": r"://",
    "user": r"-u(?:ser[ =]| )",
    "_": r"_[a-z0-9_]{20}",
    "-": r"-[a-z0-9_-]{10}",
    ".": r"\.[a-z0-9_-]{20}",
}
_KEY_NAMES = r"(?:api|access|account|secret|private|shared|subscription|storage|master|client)[_ -]?keys?"
#: Prefixes that "pass" may follow without a separator: DBPASS, but not bypass.
_PREFIXES = "".join(f"|(?<={word}pass)" for word in ("db", "sql", "pg", "ftp", "smtp", "ssh", "user", "root", "admin"))
#: Groups of patterns, by the gates of which one must match. Each pattern has a keyword that the text must contain, the
#: regular expression (both in lower case), and the name of a rule that a match must satisfy.
_PATTERNS: dict[tuple[str, ...], tuple[tuple[str, str, str], ...]] = {
    (): (
        ("://", r"://[^\s/:@'\"<>]*:(?P<secret>[^\s/@'\"<>•]+)@(?=[^\s@])", ""),
        ("q~", r"(?P<secret>[a-z0-9_~.-]{3}\dq~[a-z0-9_~.-]{30,})", ""),
        ("dapi", _match_token("dapi", r"[0-9a-f]{32}(?![0-9a-z])"), ""),
        ("authorization", rf"authorization{_SEPARATOR}(?:basic|token) +(?P<secret>[a-z0-9+/=_-]{{8,}})", ""),
        ("bearer ", r"\bbearer +(?P<secret>[a-z0-9._~+/=-]{16,})", "mixed"),
        ("eyj", _match_token("eyj", r"[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}(?:\.[a-z0-9_-]*)?"), ""),
        ("akia", _match_token("akia", r"[0-9a-z]{16}(?![0-9a-z])"), ""),
        ("asia", _match_token("asia", r"[0-9a-z]{16}(?![0-9a-z])"), "mixed"),
        ("aiza", _match_token("aiza", r"[0-9a-z_-]{35}"), ""),
        ("private key-", r"-----begin [a-z0-9 ]*private key-----(?P<secret>.+?)(?=-----end |\Z)", "block"),
    ),
    ("://",): (
        ("@", r"://(?P<secret>[^\s/:@'\"<>•]{16,})@(?=[^\s@])", "mixed"),
        ("hooks.slack.com/", r"hooks\.slack\.com/[a-z]+/(?P<secret>[a-z0-9/_-]{16,})", ""),
        ("/webhooks/", r"/webhooks/(?P<secret>[a-z0-9_-]+/[a-z0-9_-]{16,})", ""),
        ("webhook.office.com/", r"webhook\.office\.com/[a-z0-9]+/(?P<secret>[a-z0-9@/_-]{16,})", ""),
        ("/t/", r"://[^\s/]+/t/(?P<secret>[a-z0-9_-]{8,})/", "mixed"),  # a conda channel
        ("api.telegram.org/bot", r"api\.telegram\.org/bot(?P<secret>\d+:[a-z0-9_-]{16,})", ""),
    ),
    ("user",): (("-u", r"-u(?:ser[ =]| +)[\"']?[^\s:\"'/]+:(?P<secret>[^\s\"'/•][^\s\"'•]{5,})", "value"),),
    ("_",): (
        ("hf_", _match_token("hf_", r"[a-z0-9]{20,}"), ""),
        ("gh", _match_token("gh", r"[pousr]_[a-z0-9]{20,}"), ""),
        ("_pat_", _match_token("github_pat_", r"[a-z0-9_]{20,}"), ""),
        ("_pat_", _match_token("dckr_pat_", r"[a-z0-9_-]{20,}"), ""),
        ("npm_", _match_token("npm_", r"[a-z0-9]{30,}"), "mixed"),
        ("k_live_", r"(?P<secret>[sr]k_live_[a-z0-9]{16,})", ""),
        ("k_test_", r"(?P<secret>[sr]k_test_[a-z0-9]{16,})", ""),
        ("whsec_", _match_token("whsec_", r"[a-z0-9+/=]{20,}"), ""),
    ),
    (".",): (
        ("sg.", _match_token(r"sg\.", r"[a-z0-9_-]{16,}\.[a-z0-9_-]{20,}"), "mixed"),
        ("ya", _match_token("ya", r"\d\d\.[a-z0-9_-]{20,}"), ""),
        ("hvs.", _match_token(r"hvs\.", r"[a-z0-9_-]{20,}"), "mixed"),
    ),
    ("-",): (
        ("gl", _match_token("gl", r"(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-[a-z0-9_-]{16,}"), "mixed"),
        ("pypi-", _match_token("pypi-", r"[a-z0-9_-]{50,}"), "mixed"),
        ("gocspx-", _match_token("gocspx-", r"[a-z0-9_-]{20,}"), ""),
        ("xapp-", _match_token("xapp-", r"[a-z0-9-]{20,}"), "mixed"),
        ("sk-", r"(?<![a-z0-9_-])(?P<secret>sk-[a-z0-9_-]{20,})", "mixed"),
        ("xox", _match_token("xox", r"[abprs]-[a-z0-9-]{10,}"), "mixed"),
    ),
    ("assigned", "colon", "flag"): (
        ("sig=", r"(?<![a-z0-9_])sig=(?P<secret>[a-z0-9%+/=_-]{16,})", ""),
        ("passw", _match_name(r"passw(?:or)?d"), "password"),
        ("passw", _match_flag("passw(?:or)?d"), "password"),
        ("passphrase", _match_name("passphrase"), "password"),
        ("passcode", _match_name("passcode"), "password"),
        ("pass", _match_name(rf"pass(?:(?<![a-z]pass){_PREFIXES})"), "password"),
        ("pwd", _match_name(r"pwd(?<!oldpwd)"), "password"),
        ("secret", _match_name(r"secret"), "password"),
        ("secret", _match_flag("secret"), "token"),
        ("token", _match_name(r"tokens?"), "token"),
        ("token", _match_flag("token"), "token"),
        ("key", _match_name(_KEY_NAMES), "token"),
        ("key", r"key[ :=]+(?P<secret>[0-9a-f]{40})(?![0-9a-z])", ""),
        ("key", _match_flag("(?:api|access|account|secret)[_-]?key"), "token"),
        ("signature", _match_name(r"sharedaccesssignature"), ""),
        ("cred", _match_name(r"cred(?:ential)?s?"), "token"),
        ("pat", _match_name(r"pat(?<![a-z]pat)"), "token"),
        ("jwt", _match_name(r"jwt"), "token"),
        ("dsn", _match_name(r"dsn"), "token"),
        ("auth", _match_name(r"auth(?<![a-z]auth)"), "token"),
        ("cookie", _match_name(r"cookies?"), "token"),
        ("webhook", _match_name(r"webhooks?(?:[_-]ur[il])?"), "value"),
        ("conn", rf"conn(?:ection)?[_ -]?str(?:ing)?s?{_SEPARATOR}(?P<secret>[^\s\"'•][^\"'\n•]{{7,}})", "connection"),
    ),
}


#: Word boundaries within a name, such as HF_TOKEN, hfToken or HFToken.
_WORD_BOUNDARY = r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
#: Patterns for names of secrets. A name is matched as lower-case words between underscores, such as "_pg_password_".
_CERTAIN_NAMES = (
    r"pass_?w(?:or)?d|pass_?phrase|pass_?code|secret|credential|webhook|_creds?_|_bearer_|_cookies?_|_sas_|_pat_"
    r"|_signature_"
    r"|(?:api|access|account|auth|client|deploy|encryption|license|master|private|service|shared|signing|ssh|storage"
    r"|subscription)_?keys?_(?!(?:id|file|path|dir|name|url)_)|_key_$|conn(?:ection)?_?str(?:ing)?s?_|dsn_|jwt_|pwd_"
    r"|_(?:admin|db|ftp|login|mail|mongo|mysql|pg|proxy|redis|root|smtp|sql|ssh|user)_?pass_"
)
#: Patterns for names that are secrets unless the second pattern matches. Its words indicate a count, a special token of
#: a language model, a pass over data, or a switch.
_LIKELY_NAMES = (
    (
        r"tokens?_|[a-z]_keys_$",
        r"_(?:n|num|max|min|total|per|count|size|len|length|limit|budget|pad|eos|bos|unk|cls|sep|mask|special|type|ids?"
        r"|embeds?|embedding|dropout|missing|unexpected)_",
    ),
    (r"_pass_$", r"_(?:n|num|max|by|forward|backward|single|multi|one|two|first|second|last|low|high|band|all|test)_"),
    (r"_auth_(?:$|basic_|config_|data_|header_|json_)", r"_(?:use|no|enable|disable|skip|with|is)_"),
)


@functools.lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    """Return whether a variable with this name probably holds a secret: PGPASSWORD or hfToken, but not max_tokens."""
    words = [word for part in _regex(_WORD_BOUNDARY).split(name) if (word := part.rstrip("0123456789").lower())]
    joined = f"_{'_'.join(words)}_"
    if name in ("PWD", "OLDPWD"):  # the working directories of a shell
        return False
    if _regex(_CERTAIN_NAMES).search(joined):
        return True
    return any(_regex(part).search(joined) and not _regex(excluded).search(joined) for part, excluded in _LIKELY_NAMES)


def mask(text: str) -> str:
    """Return the text with each secret of a known form replaced by ``MASK``."""
    parts, position = [], 0
    for start, end in locate(text):
        parts += [text[position:start], MASK]
        position = end
    return "".join((*parts, text[position:])) if parts else text


#: Minimum length of a variable's value to be redacted. Shorter values occur in many texts by chance.
_MIN_LENGTH = 6


def redact(text: str) -> str:
    """Return the text without secrets of known forms and without the values of variables whose name looks secret."""
    for name, value in os.environ.items():
        # A variable may contain the path of a file with a secret. The path itself is not secret.
        if len(value) >= _MIN_LENGTH and value in text and looks_secret(name) and not Path(value).exists():
            text = text.replace(value, MASK)
    return mask(text)


def locate(text: str, *, whole: bool = False) -> list[Span]:
    """Return the ordered, disjoint spans of secrets. With ``whole``, they include the text that identifies a secret."""
    # Lower only ASCII letters, because the lower case of other letters can have another length.
    encoded = b"" if text.isascii() else text.encode("utf-8", "surrogatepass")
    lowered = encoded.lower().decode("utf-8", "surrogatepass") if encoded else text.lower()
    matches: list[Span] = []
    for gates, patterns in _PATTERNS.items():
        if not gates or any(_regex(_GATES[gate]).search(lowered) for gate in gates):
            for keyword, pattern, rule in patterns:
                if keyword in lowered:
                    valid = (match for match in _regex(pattern).finditer(lowered) if not rule or _RULES[rule](match))
                    matches += [match.span(0 if whole else "secret") for match in valid]
    merged: list[Span] = []
    for start, end in sorted(matches):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


@functools.cache
def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL if "private key-" in pattern else 0)


def _is_value(match: re.Match[str]) -> bool:
    """Return whether an assigned text is a literal value instead of a number, path, call or identifier."""
    fields = match.groupdict()
    value = fields["secret"]
    if fields.get("suffix") or _NUMBER.match(value) or _PATH.match(value) or value.startswith(("•", "*", "...", "$")):
        return False
    return bool(fields.get("quote")) or not _REFERENCE.match(value)


def _is_password(match: re.Match[str]) -> bool:
    if not _is_value(match):
        return False
    fields = match.groupdict()
    # "password: required" is a description, but "password=required" may contain a password.
    is_description = not fields.get("quote") and ":" in (fields.get("separator") or "")
    return not is_description or _DIGIT.search(fields["secret"]) is not None


def _is_mixed(match: re.Match[str]) -> bool:
    return _LETTER.search(match["secret"]) is not None and _DIGIT.search(match["secret"]) is not None


_RULES: dict[str, Callable[[re.Match[str]], bool]] = {
    "value": _is_value,
    "password": _is_password,
    "token": lambda match: _is_value(match) and _is_mixed(match),
    "mixed": _is_mixed,
    "block": lambda match: bool(match["secret"].strip()),
    "connection": lambda match: "=" in match["secret"] or "@" in match["secret"],
}
