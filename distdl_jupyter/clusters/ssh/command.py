"""Builds the ssh command line, and explains the error messages of ssh.

Only keys and key agents are used, never passwords, and host keys must be known. The program that starts the agent is
sent over standard input, so the command line reveals nothing about the job.
"""

from __future__ import annotations

import re
import shlex

from distdl_jupyter.clusters.agents.agent import Host, Unreachable

#: Timeout in seconds for connecting to a host.
CONNECT_SECONDS = 10
#: Keep-alive interval in seconds, and count: ssh detects a dead connection after their product.
_ALIVE_SECONDS, _ALIVE_COUNT = 3, 2
_SETTINGS = {
    # Options that older versions of ssh do not support.
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
#: Starts Python from any login shell, including csh and fish, because the single-quoted text contains no single quote,
#: "!" or line break. ``read`` reads one line of standard input and leaves the rest for Python.
_START_COMMAND = (
    "exec sh -c '"
    'IFS= read -r p; case "$p" in "~/"*) p="$HOME/${p#??}";; esac; '
    'command -v "$p" >/dev/null 2>&1 || { echo "distdl: no python: $p" >&2; exit 127; }; '
    'exec "$p" -c "import sys;exec(bytes.fromhex(sys.stdin.buffer.raw.readline().decode()))"'
    "'"
)


def argv(host: Host, ssh_config: str = "") -> list[str]:
    """Return the command that starts an agent on ``host``; its input is ``package.first_input``, then frames."""
    settings = [argument for name, value in _SETTINGS.items() for argument in ("-o", f"{name}={value}")]
    return ["ssh", "-T", *_config_arguments(ssh_config), *settings, "--", host.target, _START_COMMAND]


def shell_command(host: Host, ssh_config: str, *command: str) -> str:
    """Return the command line for a user: ``ssh -F lab.conf gpu1 nvidia-smi``."""
    return shlex.join(["ssh", *_config_arguments(ssh_config), host.target, *command])


def _config_arguments(ssh_config: str) -> list[str]:
    return ["-F", ssh_config] if ssh_config else []


def explain(host: Host, ssh_config: str, python: str, output: str, code: int | None) -> Unreachable:
    """Return the reason why no agent started, from the output of ssh, the login shell and Python."""
    ssh = shell_command(host, ssh_config)
    command = re.search(r"ssh-keygen -f \S+ -R \S+", output)
    values = {"ssh": ssh, "target": host.target, "python": python}
    values["forget"] = command[0] if command else f"ssh-keygen -R {host.name}"
    for pattern, kind, message, remedy in CAUSES:
        if match := re.search(pattern, output, re.IGNORECASE | re.MULTILINE):
            groups = ["", *((group or "").strip().rstrip(".") for group in match.groups())]
            return Unreachable(host.name, kind, message.format(*groups, **values), remedy.format(*groups, **values))
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last_line = f": {lines[-1][:300].rstrip('.')}." if lines else ""
    if code == 255 or code is None:
        message = f"ssh ended{last_line or ' without a message.'}"
        return Unreachable(host.name, "ssh", message, f"Try the connection in a terminal: {ssh} true")
    message = f"The login shell ended with code {code}{last_line or ' and did not start the agent.'}"
    return Unreachable(host.name, "shell", message, f"Fix the login shell so that this prints ok: {ssh} echo ok")


_KEY_CHANGED = "The host key has changed. Another machine may be impersonating the host."
_RENEW_KEY = "Ask the administrator. If the key was renewed, run {forget}, then {ssh} true"
_LOAD_KEY = "If the key has a passphrase, load it with ssh-add. Otherwise copy a key to the host: ssh-copy-id {target}"
_NEW_PYTHON = "Install a newer Python on the host, or set the option python to its path."
#: Causes of an unreachable host: pattern of the output, kind, message, and remedy; both texts may use pattern groups.
#: The first match counts, because ssh also reports a failed verification if a key has changed.
CAUSES = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .* has changed", "changed-key", _KEY_CHANGED, _RENEW_KEY),
    (r"REVOKED HOST KEY|host key .* revoked", "changed-key", _KEY_CHANGED, _RENEW_KEY),
    (
        r"No \S+ host key is known for|Host key verification failed",
        "unknown-key",
        "The host key is not known on this machine.",
        "Run {ssh} true once, and compare the fingerprint with the output of ssh-keygen -lf "
        "/etc/ssh/ssh_host_ed25519_key.pub on the host.",
    ),
    (
        r"Permissions \d+ for '([^']+)' are too open",
        "denied",
        "ssh does not use the key {1}, because other users can read it.",
        "Run: chmod 600 {1}",
    ),
    (r"Permission denied \(([^)]*)\)", "denied", "The host rejected all SSH keys ({1}).", _LOAD_KEY),
    (r"Permission denied|Too many authentication failures", "denied", "The host rejected all SSH keys.", _LOAD_KEY),
    (
        r"Could not resolve hostname ([^:\s]+)",
        "name",
        "The host name {1} cannot be resolved.",
        "Correct the name, or set its address as HostName in ~/.ssh/config.",
    ),
    (
        r"connect to host \S+ port (\d+): Connection refused",
        "refused",
        "The host refused the connection on port {1}.",
        "Start sshd on the host, or set its port in ~/.ssh/config.",
    ),
    (
        r"Connection timed out|Operation timed out|timed out during banner|Timeout, server",
        "timeout",
        "The host does not respond.",
        "Check that the host is on and reachable: {ssh} true",
    ),
    (
        r"connect to host \S+ port \d+: (No route to host|Network is unreachable)",
        "route",
        "No route to the host ({1}).",
        "Check the network of this machine: {ssh} true",
    ),
    (
        r"^distdl: no python: (.*)$",
        "python",
        "Python was not found at {1}.",
        "Install the same environment on the host, or set the option python to the path of its Python.",
    ),
    (
        r"^distdl: old python: (.*)$",
        "old-python",
        "Python at {python} is {1}, but 3.11 or newer is required.",
        _NEW_PYTHON,
    ),
    (
        r"has no attribute 'fromhex'|AttributeError: 'file' object",
        "old-python",
        "Python at {python} is too old, but 3.11 or newer is required.",
        _NEW_PYTHON,
    ),
    (
        r"^distdl: no folder: (.*?): (.*)$",
        "folder",
        "Cannot write to the folder {1} on the host: {2}.",
        "Set the option directory to another folder.",
    ),
    (
        r"^distdl: not ours: (.*)$",
        "folder",
        "On the host, {1}.",
        "Set the option directory to a folder of your own.",
    ),
    (
        r"^(.*Bad configuration option.*|Can't open user config file.*)$",
        "ssh",
        "ssh cannot read its configuration: {1}.",
        "Correct that file, or the option ssh_config.",
    ),
    (
        r"^(.*account is currently not available.*|.*nologin.*)$",
        "shell",
        "The account on the host does not allow logins: {1}.",
        "Ask for an account with a shell, so that this prints ok: {ssh} echo ok",
    ),
)
