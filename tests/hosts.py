"""Several hosts on one machine: network and UTS namespaces with an address, an sshd and a host key of their own.

``node-a``, ``node-b``, ... stand on one bridge. Each calls its interface on it differently, and each has an ``eth0``
that leads nowhere, so whatever goes by an interface's name goes wrong. It takes Linux, root with CAP_NET_ADMIN,
iproute2 and OpenSSH's server; nothing outside of the namespaces is changed, and no traffic leaves this machine.
"""

import contextlib
import fcntl
import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
IP = shutil.which("ip") or "/usr/sbin/ip"
PARTS = Path(tempfile.gettempdir()) / "distdl-test-hosts"


def run(*command, check=True, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=check, **options)


@functools.cache
def missing():
    """Return what keeps this machine from having several hosts, "" when nothing does."""
    if os.geteuid() != 0:
        return "several hosts on one machine need root"
    if not Path(IP).exists() or not Path(SSHD).exists():
        return "several hosts on one machine need 'apt-get install iproute2 openssh-server'"
    probe = f"ddprobe{os.getpid()}"
    if run(IP, "netns", "add", probe, check=False).returncode != 0:
        return "several hosts on one machine need CAP_NET_ADMIN and CAP_SYS_ADMIN"
    run(IP, "netns", "del", probe, check=False)
    return ""


#: Put over a test or a module that needs hosts.
needs_hosts = pytest.mark.skipif(bool(missing()), reason=missing() or "hosts are there")


class Hosts:
    """``count`` hosts; ``private`` are folders that each host named there sees empty, as {"node-c": [path]}, and
    ``instead`` files or folders in whose place it sees others, as {"node-c": {path: other}}.

    With ``own_processes`` a host sees and counts its own processes only, so nobody on another one can end them.
    """

    def __init__(self, count=3, private=None, instead=None, *, own_processes=False):
        self.names = [f"node-{chr(ord('a') + at)}" for at in range(count)]
        self._private = private or {}
        self._instead = instead or {}
        self._spaces = ["--pid", "--fork", "--kill-child", "--mount-proc"] if own_processes else []
        self._lock, self._number = _take_number()
        self._daemons = []
        _clean(self._number)
        self.folder = Path(tempfile.mkdtemp(prefix="hosts-"))
        self.folder.chmod(0o700)
        self.ssh_config = self.folder / "ssh_config"
        self.known_hosts = self.folder / "known_hosts"
        try:
            self._up()
        except BaseException:
            self.down()
            raise

    # names ------------------------------------------------------------------------------------

    def options(self, **more):
        """Return the options of an ``ssh`` cluster of all hosts."""
        return {"hosts": ",".join(self.names), "ssh_config": str(self.ssh_config), **more}

    def address(self, name):
        return f"10.203.{self._number}.{11 + self.names.index(name)}"

    @property
    def gateway(self):
        """The address of the machine that launches."""
        return f"10.203.{self._number}.1"

    @property
    def number(self):
        """A number that no other test run on this machine uses."""
        return self._number

    def interface(self, name):
        return f"net{chr(ord('0') + self.names.index(name))}"

    def space(self, name):
        """Return the name of a host's network namespace."""
        return f"dd{self._number}{name[-1]}"

    # what happens to them ---------------------------------------------------------------------

    def cut(self, name):
        """Take the host's link down; its processes continue."""
        run(IP, "-n", self.space(name), "link", "set", self.interface(name), "down")

    def join(self, name):
        """Take the link up again."""
        run(IP, "-n", self.space(name), "link", "set", self.interface(name), "up")

    def kill(self, name):
        """Kill all processes of the host, its sshd first."""
        self._daemons[self.names.index(name)].kill()
        for pid in run(IP, "netns", "pids", self.space(name)).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def pids(self, name):
        """Return the processes in the host's network namespace, without its sshd."""
        found = run(IP, "netns", "pids", self.space(name)).stdout.split()
        daemons = {daemon.pid for daemon in self._daemons}
        return [pid for pid in map(int, found) if pid not in daemons and not self._is_sshd(pid)]

    def _is_sshd(self, pid):
        with contextlib.suppress(OSError):
            return f"{self.folder}/sshd-".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    def running(self, name, words):
        """Return the pids on a host whose command line contains ``words``."""
        found = []
        for pid in self.pids(name):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words in line:
                    found.append(pid)
        return found

    def ssh(self, name, *command, **options):
        """Run a command on a host as a user would."""
        return run("ssh", "-F", self.ssh_config, name, *command, **options)

    def change_host_key(self, name):
        """Write another key of this host into known_hosts, as if another machine had its address."""
        other = self.folder / f"other-{name}"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other)
        self._know({name: other})

    def forget_host_key(self, name):
        """Let known_hosts hold no key for this host."""
        self._know({name: None})

    def know_all(self):
        """Let known_hosts hold every host's own key."""
        self._know({})

    # up and down ------------------------------------------------------------------------------

    def _up(self):
        bridge = f"dd{self._number}br"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "id")
        shutil.copy(self.folder / "id.pub", self.folder / "authorized_keys")
        run(IP, "link", "add", bridge, "type", "bridge")
        run(IP, "addr", "add", f"{self.gateway}/24", "dev", bridge)
        run(IP, "link", "set", bridge, "up")
        for at, name in enumerate(self.names):
            self._add(at, name, bridge)
        self.know_all()
        self._write_config()
        for name in self.names:
            self._await_sshd(name)

    def _add(self, at, name, bridge):
        space, outer = self.space(name), f"dd{self._number}v{at}"
        inner = self.interface(name)
        run(IP, "netns", "add", space)
        files = Path("/etc/netns") / space
        files.mkdir(parents=True, exist_ok=True)
        lines = ["127.0.0.1 localhost", *(f"{self.address(other)} {other}" for other in self.names)]
        (files / "hosts").write_text("\n".join(lines) + "\n")
        run(IP, "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
        run(IP, "link", "set", outer, "master", bridge, "up")
        run(IP, "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", inner)
        run(IP, "link", "add", f"dd{self._number}w{at}", "type", "veth", "peer", "name", "eth0", "netns", space)
        run(IP, "link", "set", f"dd{self._number}w{at}", "up")
        run(IP, "-n", space, "addr", "add", f"192.168.{200 + at}.1/24", "dev", "eth0")
        for link in (inner, "eth0", "lo"):
            run(IP, "-n", space, "link", "set", link, "up")
        self._start_sshd(name)

    def _start_sshd(self, name):
        key = self.folder / f"host-{name}"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        config = self.folder / f"sshd-{name}.conf"
        config.write_text(
            f"Port 22\nListenAddress {self.address(name)}\nHostKey {key}\nPidFile none\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\nPubkeyAuthentication yes\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
            "UsePAM no\nStrictModes no\nMaxStartups 100\nSubsystem sftp internal-sftp\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        hidden = "".join(
            f"mkdir -p '{folder}'; mount -t tmpfs none '{folder}' || exit 1; " for folder in self._private.get(name, ())
        )
        hidden += "".join(
            f"mount --bind '{other}' '{path}' || exit 1; " for path, other in self._instead.get(name, {}).items()
        )
        inside = f"hostname {name}; mount --make-rprivate / && {hidden}exec {SSHD} -D -e -f {config}"
        log = (self.folder / f"sshd-{name}.log").open("wb")
        self._daemons.append(
            subprocess.Popen(
                [
                    IP,
                    "netns",
                    "exec",
                    self.space(name),
                    "unshare",
                    "--uts",
                    "--mount",
                    *self._spaces,
                    "sh",
                    "-c",
                    inside,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )
        log.close()

    def _await_sshd(self, name):
        until = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection((self.address(name), 22), 1):
                return
            assert time.monotonic() < until, (self.folder / f"sshd-{name}.log").read_text()
            time.sleep(0.02)

    def _know(self, others):
        lines = []
        for name in self.names:
            key = others.get(name, self.folder / f"host-{name}")
            if key is not None:
                kind, text = Path(f"{key}.pub").read_text().split()[:2]
                lines.append(f"{name},{self.address(name)} {kind} {text}\n")
        self.known_hosts.write_text("".join(lines))

    def _write_config(self):
        named = "".join(f"Host {name}\n  HostName {self.address(name)}\n" for name in self.names)
        self.ssh_config.write_text(
            f"{named}Host *\n  User root\n  IdentityFile {self.folder}/id\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
        )

    def down(self):
        """Remove the hosts and end their processes."""
        _clean(self._number)
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _take_number():
    """Return a lock and a number that no other test run on this machine uses."""
    PARTS.mkdir(exist_ok=True, mode=0o700)
    for number in range(250):
        lock = os.open(PARTS / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return lock, number
    raise RuntimeError("250 test runs have hosts at once")


def _clean(number):
    """Remove what an earlier run with this number left behind."""
    for line in run(IP, "netns", "list").stdout.splitlines():
        space = line.split()[0]
        if space[:-1] == f"dd{number}":
            for pid in run(IP, "netns", "pids", space, check=False).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            run(IP, "netns", "del", space, check=False)
            shutil.rmtree(Path("/etc/netns") / space, ignore_errors=True)
    for line in run(IP, "-o", "link").stdout.splitlines():
        link = line.split(": ")[1].split("@")[0]
        if link.startswith((f"dd{number}v", f"dd{number}w", f"dd{number}br")):
            run(IP, "link", "del", link, check=False)


@pytest.fixture(scope="session")
def three_hosts():
    """Three hosts for the whole run; a test that changes one restores it."""
    if missing():
        pytest.skip(missing())
    hosts = Hosts(3)
    yield hosts
    hosts.down()


@pytest.fixture
def hosts_of():
    """Make hosts for one test: ``hosts_of(2)``."""
    if missing():
        pytest.skip(missing())
    made = []

    def make(count=2, **options):
        made.append(Hosts(count, **options))
        return made[-1]

    yield make
    for one in made:
        one.down()
