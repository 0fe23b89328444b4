"""Secrets to plant, and where they may turn up: every file, every command line."""

import base64
import os
import urllib.parse
from pathlib import Path

#: What runs with the job or came back from it; SECURITY.md says that secrets in it stay.
OWN = ("payload.pkl", "payload.json", "code", "results", "outputs")

#: By the name of their variable; the last one has a harmless name and a value with the form of a secret.
VARIABLES = {
    "HF_TOKEN": "hf_QwErTyUiOpAsDfGhJkLzXcVbNm12",
    "MY_PASSWORD": "sesame+öffne/dich 7",
    "DATABASE_URL": "postgres://ada:l0velace@db.example/train",
}
#: In the environment of who submits.
INHERITED = {"WANDB_API_KEY": "9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c"}
IN_CODE = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
IN_URL = "sv=2024-01-01&sig=c2lnbmF0dXJl%2BMDEyMzQ1Njc4OWFiY2Rl%3D"
IN_ARGUMENT = "argum3nt-of-mine"
IN_VARIABLE = "kernelv4riable-of-mine"
JWT = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.c2lnbmVkLWJ5LW5vYm9keQ"
_KEY_LINES = ("b3BlbnNzaC1rZXktdjEAAAAA", "QyNTUxOQAAACBmYWtla2V5")
KEY = "\n".join(("-----BEGIN OPENSSH PRIVATE KEY-----", *_KEY_LINES, "-----END OPENSSH PRIVATE KEY-----"))

_VALUES = [*VARIABLES.values(), "l0velace", *INHERITED.values(), IN_CODE, "c2lnbmF0dXJl%2BMDEyMzQ1", IN_ARGUMENT]
#: Every form in which one of them could be found.
NEEDLES = frozenset(
    form.encode()
    for value in (*_VALUES, IN_VARIABLE, JWT.rpartition(".")[2], *_KEY_LINES)
    for form in (
        value, urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value), ascii(value)[1:-1],
        base64.b64encode(value.encode()).decode().rstrip("="),
    )
)  # fmt: skip


def found_in(content):
    """Return the planted secrets that stand in some text or bytes."""
    content = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return sorted(needle.decode() for needle in NEEDLES if needle in content)


def written_below(folder):
    """Return {file: secrets} of all files below a folder but those that are the job's own."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        below = path.relative_to(folder).parts
        own = below[:1] == ("jobs",) and len(below) > 2 and below[2] in OWN
        if path.is_file() and not path.is_symlink() and not own:
            secrets = found_in(path.read_bytes())
            if secrets:
                found["/".join(below)] = secrets
    return found


def command_lines():
    """Return the command lines of all processes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(entry.read_bytes())
        except OSError:
            continue
    return found


def new_in_tmp(before):
    """Return {file: secrets} of what was put into the temporary directory since."""
    found = {}
    for name in set(os.listdir("/tmp")) - set(before):
        if name.startswith(("distdl", "ray", "ompi", "tmp")):
            found |= {f"/tmp/{name}/{file}": what for file, what in written_below(f"/tmp/{name}").items()}
    return found
