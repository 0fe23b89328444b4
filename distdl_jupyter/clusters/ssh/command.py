"""The ssh command line, and what ssh's last words mean.

Keys or an agent only, never a password; a host key must be known. What starts the agent travels on standard input, so
the command line is the same for every job and says nothing about it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from distdl_jupyter.clusters.agents.agent import Unreachable

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Host

#: Seconds for reaching a host.
CONNECT_SECONDS = 10
#: A dead connection is noticed after their product; Horovod alone would wait 30 s, Open MPI for ever.
_ALIVE_SECONDS, _ALIVE_COUNT = 3, 2
_SETTINGS = {
    # Names that an older ssh does not know yet.
    "IgnoreUnknown": "StdinNull,SessionType,ForkAfterAuthentication",
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "UpdateHostKeys": "no",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "ConnectTimeout": str(CONNECT_SECONDS),
    "ConnectionAttempts": "1",
    "ServerAliveInterval": str(_ALIVE_SECONDS),
    "ServerAliveCountMax": str(_ALIVE_COUNT),
    "ControlMaster": "no",
    "ControlPath": "none",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "StdinNull": "no",
    "SessionType": "default",
    "ForkAfterAuthentication": "no",
    "LogLevel": "ERROR",
}
#: For any login shell, csh and fish included: one pair of single quotes, in it no quote of that kind, no "!", no line
#: break. ``read`` takes one line from standard input and leaves the rest for Python.
_BEGIN = (
    "exec sh -c '"
    'IFS= read -r p; case "$p" in "~/"*) p="$HOME/${p#??}";; esac; '
    'command -v "$p" >/dev/null 2>&1 || { echo "distdl: no python: $p" >&2; exit 127; }; '
    'exec "$p" -c "import sys;exec(bytes.fromhex(sys.stdin.buffer.raw.readline().decode()))"'
    "'"
)


def argv(host: Host, ssh_config: str = "") -> list[str]:
    """Return the command that begins an agent on ``host``; its standard input is ``first_lines``, then frames."""
    config = ["-F", ssh_config] if ssh_config else []
    settings = [word for name, value in _SETTINGS.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-T", *config, *settings, "--", host.target, _BEGIN]


def in_words(host: Host, ssh_config: str, *command: str) -> str:
    """Return how a user would run a command there: ``ssh -F lab.conf gpu1 nvidia-smi``."""
    config = ["-F", ssh_config] if ssh_config else []
    return shlex.join(["ssh", *config, host.target, *command])


def explain(host: Host, ssh_config: str, python: str, said: str, code: int | None) -> Unreachable:
    """Return why no agent began, from what ssh, the login shell and Python said on standard error."""
    for pattern, kind, describe in _CAUSES:
        if found := re.search(pattern, said, re.IGNORECASE | re.MULTILINE):
            says, remedy = describe(host, in_words(host, ssh_config), found)
            return Unreachable(host.name, kind, says.replace("{python}", python), remedy)
    return _unknown_cause(host, in_words(host, ssh_config), said, code)


def _unknown_cause(host: Host, ssh: str, said: str, code: int | None) -> Unreachable:
    last = _last_line(said)
    if code == 255 or code is None:
        says = f"ssh ended: {last}." if last else "ssh ended without a word."
        return Unreachable(host.name, "ssh", says, f"Try it in a terminal: {ssh} true")
    says = f"The login shell ended with code {code}" + (f": {last}." if last else " and started nothing.")
    return Unreachable(host.name, "shell", says, f"This must print ok: {ssh} echo ok")


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:300].rstrip(".") if lines else ""


_Explanation = tuple[str, str]
_Explain = Callable[["Host", str, "re.Match[str]"], _Explanation]


def _changed_key(host: Host, ssh: str, found: re.Match[str]) -> _Explanation:
    own = re.search(r"ssh-keygen -f \S+ -R \S+", found.string)
    forget = own[0] if own else f"ssh-keygen -R {host.name}"
    return (
        "Its host key is not the one that is known: another machine may stand in its place.",
        f"Ask its administrator; if the key was renewed, run {forget} and then {ssh} true once.",
    )


def _unknown_key(_host: Host, ssh: str, _found: re.Match[str]) -> _Explanation:
    return (
        "Its host key is not known here.",
        f"Run {ssh} true once and compare the fingerprint with that of ssh-keygen -lf "
        "/etc/ssh/ssh_host_ed25519_key.pub on the host.",
    )


def _denied(host: Host, _ssh: str, found: re.Match[str]) -> _Explanation:
    return (
        f"It accepts none of the keys offered ({found[1]})." if found[1] else "It accepts none of the keys offered.",
        f"Bring a key there with ssh-copy-id {host.target}, and load one that has a passphrase with ssh-add.",
    )


def _no_name(_host: Host, _ssh: str, found: re.Match[str]) -> _Explanation:
    return (
        f"The name {found[1]} has no address.",
        "Correct the name, or give its address as HostName in ~/.ssh/config.",
    )


def _refused(_host: Host, _ssh: str, found: re.Match[str]) -> _Explanation:
    return (
        f"Nothing answers on its port {found[1]}.",
        "Start sshd there, or name its port in ~/.ssh/config.",
    )


def _silent(_host: Host, ssh: str, _found: re.Match[str]) -> _Explanation:
    return "It does not answer.", f"See whether it is on and reachable: {ssh} true"


def _no_route(_host: Host, ssh: str, found: re.Match[str]) -> _Explanation:
    return f"No way leads there ({found[1].strip()}).", f"See whether this machine's network reaches it: {ssh} true"


def _no_python(_host: Host, _ssh: str, found: re.Match[str]) -> _Explanation:
    return (
        f"There is no Python at {found[1].strip()}.",
        "Install the same environment there, or name its Python with the option python.",
    )


def _old_python(_host: Host, _ssh: str, found: re.Match[str]) -> _Explanation:
    return (
        f"Its Python at {{python}} is {found[1] or 'old'}, and 3.11 is the oldest that will do.",
        "Install a newer one there, or name it with the option python.",
    )


def _no_folder(_host: Host, _ssh: str, found: re.Match[str]) -> _Explanation:
    return (
        f"Its folder {found[1].strip()} cannot be written: {found[2].strip()}.",
        "Name another one with the option directory.",
    )


def _not_ours(_host: Host, _ssh: str, found: re.Match[str]) -> _Explanation:
    return (
        f"Its folder {found[1].strip()} {found[2].strip()}, so nothing in it is run.",
        "Name a folder of your own with the option directory, or take the right to write away from others with "
        "chmod go-w on that host.",
    )


def _bad_config(_host: Host, _ssh: str, found: re.Match[str]) -> _Explanation:
    return f"ssh cannot read its configuration: {found[1].strip()}.", "Correct that file or the option ssh_config."


def _nologin(_host: Host, ssh: str, found: re.Match[str]) -> _Explanation:
    return (
        f"The account there lets nobody in: {found[1].strip().rstrip('.')}.",
        f"Ask for an account with a shell; this must print ok: {ssh} echo ok",
    )


def _bad_key_file(_host: Host, _ssh: str, found: re.Match[str]) -> _Explanation:
    return f"ssh refuses the key {found[1]}, because others can read it.", f"Run chmod 600 {found[1]}"


#: In this order: a later line of a changed key also says that verification failed.
_CAUSES: tuple[tuple[str, str, _Explain], ...] = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .* has changed", "changed-key", _changed_key),
    (r"REVOKED HOST KEY|host key .* revoked", "changed-key", _changed_key),
    (r"No \S+ host key is known for|Host key verification failed", "unknown-key", _unknown_key),
    (r"Permissions \d+ for '([^']+)' are too open", "denied", _bad_key_file),
    (r"Permission denied(?: \(([^)]*)\))?|Too many authentication failures()", "denied", _denied),
    (r"Could not resolve hostname ([^:\s]+)", "name", _no_name),
    (r"connect to host \S+ port (\d+): Connection refused", "refused", _refused),
    (r"Connection timed out|Operation timed out|timed out during banner|Timeout, server", "timeout", _silent),
    (r"connect to host \S+ port \d+: (No route to host|Network is unreachable)", "route", _no_route),
    (r"^distdl: no python: (.*)$", "python", _no_python),
    (r"^distdl: old python: (.*)$", "old-python", _old_python),
    (r"has no attribute 'fromhex'()|AttributeError: 'file' object", "old-python", _old_python),
    (r"^distdl: no folder: (.*?): (.*)$", "folder", _no_folder),
    (r"^distdl: not ours: (.*?): (.*)$", "folder", _not_ours),
    (r"^(.*Bad configuration option.*|Can't open user config file.*)$", "ssh", _bad_config),
    (r"^(.*account is currently not available.*|.*nologin.*)$", "shell", _nologin),
)
