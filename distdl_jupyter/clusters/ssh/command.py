"""The ssh command line, and what ssh's error messages mean.

Only keys and key agents are used, never passwords, and host keys must be known. The program that starts the agent is
sent over standard input, so the command line is the same for every job and reveals nothing about it.
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
#: A dead connection is noticed after their product; Horovod alone would wait 30 s, Open MPI forever.
_ALIVE_SECONDS, _ALIVE_COUNT = 3, 2
_SETTINGS = {
    # Options that older versions of ssh do not have.
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
#: Works in any login shell, csh and fish included: one pair of single quotes without a single quote, "!" or line break
#: inside. ``read`` reads one line of standard input and leaves the rest to Python.
_BEGIN = (
    "exec sh -c '"
    'IFS= read -r p; case "$p" in "~/"*) p="$HOME/${p#??}";; esac; '
    'command -v "$p" >/dev/null 2>&1 || { echo "distdl: no python: $p" >&2; exit 127; }; '
    'exec "$p" -c "import sys;exec(bytes.fromhex(sys.stdin.buffer.raw.readline().decode()))"'
    "'"
)


def argv(host: Host, ssh_config: str = "") -> list[str]:
    """Return the command that starts an agent on ``host``; its standard input is ``first_lines``, then frames."""
    settings = [word for name, value in _SETTINGS.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-T", *_config(ssh_config), *settings, "--", host.target, _BEGIN]


def shell_command(host: Host, ssh_config: str, *command: str) -> str:
    """Return how a user would run a command there: ``ssh -F lab.conf gpu1 nvidia-smi``."""
    return shlex.join(["ssh", *_config(ssh_config), host.target, *command])


def _config(ssh_config: str) -> list[str]:
    return ["-F", ssh_config] if ssh_config else []


def explain(host: Host, ssh_config: str, python: str, output: str, code: int | None) -> Unreachable:
    """Return why no agent started, from what ssh, the login shell and Python printed."""
    ssh = shell_command(host, ssh_config)
    for pattern, kind, describe in _CAUSES:
        if match := re.search(pattern, output, re.IGNORECASE | re.MULTILINE):
            text, remedy = describe(host, ssh, match)
            return Unreachable(host.name, kind, text.replace("{python}", python), remedy)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = f": {lines[-1][:300].rstrip('.')}." if lines else ""
    if code == 255 or code is None:
        text = f"ssh ended{last or ' without a message.'}"
        return Unreachable(host.name, "ssh", text, f"Try the connection in a terminal: {ssh} true")
    text = f"The login shell ended with code {code}{last or ' and did not start the agent.'}"
    return Unreachable(host.name, "shell", text, f"Fix the login shell so that this prints ok: {ssh} echo ok")


_Explanation = tuple[str, str]
_Explain = Callable[["Host", str, "re.Match[str]"], _Explanation]


def _changed_key(host: Host, ssh: str, match: re.Match[str]) -> _Explanation:
    command = re.search(r"ssh-keygen -f \S+ -R \S+", match.string)
    forget = command[0] if command else f"ssh-keygen -R {host.name}"
    return (
        "The host key has changed. Another machine may be impersonating the host.",
        f"Ask the administrator. If the key was renewed, run {forget}, then {ssh} true",
    )


def _unknown_key(_host: Host, ssh: str, _match: re.Match[str]) -> _Explanation:
    return (
        "The host key is not known on this machine.",
        f"Run {ssh} true once, and compare the fingerprint with the output of ssh-keygen -lf "
        "/etc/ssh/ssh_host_ed25519_key.pub on the host.",
    )


def _denied(host: Host, _ssh: str, match: re.Match[str]) -> _Explanation:
    return (
        f"The host rejected all SSH keys ({match[1]})." if match[1] else "The host rejected all SSH keys.",
        "If the key has a passphrase, load it with ssh-add. Otherwise copy a key to the host: "
        f"ssh-copy-id {host.target}",
    )


def _no_name(_host: Host, _ssh: str, match: re.Match[str]) -> _Explanation:
    return (
        f"The host name {match[1]} cannot be resolved.",
        "Correct the name, or set its address as HostName in ~/.ssh/config.",
    )


def _refused(_host: Host, _ssh: str, match: re.Match[str]) -> _Explanation:
    return (
        f"The host refused the connection on port {match[1]}.",
        "Start sshd on the host, or set its port in ~/.ssh/config.",
    )


def _silent(_host: Host, ssh: str, _match: re.Match[str]) -> _Explanation:
    return "The host does not respond.", f"Check that the host is on and reachable: {ssh} true"


def _no_route(_host: Host, ssh: str, match: re.Match[str]) -> _Explanation:
    return f"No route to the host ({match[1].strip()}).", f"Check the network of this machine: {ssh} true"


def _no_python(_host: Host, _ssh: str, match: re.Match[str]) -> _Explanation:
    return (
        f"Python was not found at {match[1].strip()}.",
        "Install the same environment on the host, or set the option python to the path of its Python.",
    )


def _old_python(_host: Host, _ssh: str, match: re.Match[str]) -> _Explanation:
    return (
        f"Python at {{python}} is {match[1] or 'too old'}, but 3.11 or newer is required.",
        "Install a newer Python on the host, or set the option python to its path.",
    )


def _no_folder(_host: Host, _ssh: str, match: re.Match[str]) -> _Explanation:
    return (
        f"Cannot write to the folder {match[1].strip()} on the host: {match[2].strip()}.",
        "Set the option directory to another folder.",
    )


def _not_ours(_host: Host, _ssh: str, match: re.Match[str]) -> _Explanation:
    return (
        f"The folder {match[1].strip()} on the host {match[2].strip()}, so its programs are not run.",
        f"Set the option directory to a folder of your own, or on the host run: chmod go-w {match[1].strip()}",
    )


def _bad_config(_host: Host, _ssh: str, match: re.Match[str]) -> _Explanation:
    return f"ssh cannot read its configuration: {match[1].strip()}.", "Correct that file, or the option ssh_config."


def _nologin(_host: Host, ssh: str, match: re.Match[str]) -> _Explanation:
    return (
        f"The account on the host does not allow logins: {match[1].strip().rstrip('.')}.",
        f"Ask for an account with a shell, so that this prints ok: {ssh} echo ok",
    )


def _bad_key_file(_host: Host, _ssh: str, match: re.Match[str]) -> _Explanation:
    return f"ssh does not use the key {match[1]}, because other users can read it.", f"Run: chmod 600 {match[1]}"


#: The order matters: a changed key also reports that the verification failed.
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
