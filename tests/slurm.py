"""A real Slurm for tests: munged, slurmctld and one slurmd in each of several hosts (see ``tests.hosts``).

Each host is a node with its own name and address; slurmctld listens on the bridge. All files lie in one private folder
and all addresses in the hosts' own network, so several test runs can have one each. It takes what ``tests.hosts``
takes, and Debian's packages slurm-wlm and munge.

With ``accounting`` it is as a site has it: slurmdbd over a MariaDB of its own, accounts and qualities of service that
are enforced, and a partition whose jobs are preempted by those of another (slurmdbd, mariadb-server-core).
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests import hosts
from tests.conftest import wait_for
from tests.hosts import Hosts, run

PROGRAMS = ("slurmctld", "slurmd", "munged", "mungekey", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
#: slurmctld listens on every address of this machine, so each test run has a port of its own.
CTLD_PORTS, SLURMD_PORT, DBD_PORTS = 16_000, 16_818, 17_000
#: Where MariaDB keeps what makes an empty database one (mariadb-install-db wants more packages).
_TABLES = Path("/usr/share/mysql/mysql_system_tables.sql")
_MARIADB = ("--no-defaults", "--user=root", "--skip-networking", "--innodb-buffer-pool-size=16M",
            "--innodb-log-file-size=16M")  # fmt: skip


def _path(program):
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def missing():
    """Return what keeps this machine from running Slurm, "" when nothing does."""
    if any(_path(program) is None for program in PROGRAMS):
        return "a real Slurm needs 'apt-get install slurm-wlm slurm-client munge'"
    return hosts.missing()


def missing_accounting():
    """Return what keeps this machine from running Slurm with its accounting, "" when nothing does."""
    if any(_path(program) is None for program in ("slurmdbd", "mariadbd")):
        return "Slurm's accounting needs 'apt-get install slurmdbd mariadb-server-core'"
    return missing()


#: Put over a test or a module that needs Slurm.
needs_slurm = pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is there")


_NO_ACCOUNTING = "AccountingStorageType=accounting_storage/none\n"
_ACCOUNTING = ("AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost={host}\n"
               "AccountingStoragePort={port}\nAccountingStoragePass={socket}\n"
               "AccountingStorageEnforce=associations,limits,qos\n")  # fmt: skip
#: Jobs of ``low`` make room for those of ``urgent``; SIGTERM tells them some seconds before.
_PREEMPTION = ("PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
               "PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=8 State=UP\n"
               "PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF State=UP\n")  # fmt: skip


class Slurm:
    """A cluster of ``count`` nodes; ``private`` are folders that a node sees empty, as ``Hosts`` takes them.

    ``conf`` is more of slurm.conf.
    """

    def __init__(self, count=2, cpus=4, private=None, accounting=False, conf=""):
        self.hosts = Hosts(count)
        self.names = self.hosts.names
        self._private = private or {}
        self._cpus = cpus
        self._accounting = accounting
        self._more = conf
        self._daemons = {}
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        self.conf = self.folder / "slurm.conf"
        try:
            self._up()
        except BaseException:
            self.down()
            raise

    @property
    def _port(self):
        return CTLD_PORTS + self.hosts.number

    def options(self, **more):
        """Return the options of a ``slurm`` cluster of these nodes."""
        return {"partition": "dd", **more}

    # what happens to it -----------------------------------------------------------------------

    def run(self, *command, **options):
        """Run one of Slurm's commands."""
        return run(*command, env={**os.environ, "SLURM_CONF": str(self.conf)}, **options)

    def stop_controller(self):
        """End slurmctld, which saves its state first: jobs of the last seconds would be lost otherwise."""
        daemon = self._daemons.pop("slurmctld")
        daemon.terminate()
        daemon.wait()

    def start_controller(self):
        """Start slurmctld, with the state that an earlier one saved, and wait until it listens.

        Slurm's commands would wait a second before they try again.
        """
        self._daemon("slurmctld", [_path("slurmctld"), "-D", "-f", str(self.conf)])
        wait_for(self._listens, what="slurmctld")

    def _listens(self, port=None):
        with contextlib.suppress(OSError), socket.create_connection((self.hosts.gateway, port or self._port), 1):
            return True

    def stop_accounting(self):
        """End slurmdbd; slurmctld keeps what it has to tell it."""
        daemon = self._daemons.pop("slurmdbd")
        daemon.terminate()
        daemon.wait()

    def start_accounting(self):
        """Start slurmdbd and wait until it listens."""
        # Where libmariadb looks for the database of "localhost".
        self._daemon("slurmdbd", [_path("slurmdbd"), "-D"], MYSQL_UNIX_PORT=str(self.folder / "db.sock"),
                     SLURM_CONF=str(self.conf))  # fmt: skip
        wait_for(lambda: self._listens(DBD_PORTS + self.hosts.number), what="slurmdbd")

    def kill_node(self, name):
        """End a node's slurmd and all that runs there, as a power cut would; Slurm is told that it is down."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()
        for pid in self.hosts.pids(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=no power")

    def states(self):
        """Return {node: state} as Slurm says it."""
        said = self.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.split()
        return dict(zip(said[::2], said[1::2], strict=True))

    # up and down ------------------------------------------------------------------------------

    def _up(self):
        self._start_munge()
        self._write_conf()
        if self._accounting:
            self._start_accounting()
        self.start_controller()
        for name in self.names:
            self._start_node(name)
        self._await_idle()

    def _start_munge(self):
        folder = self.folder / "munge"
        folder.mkdir(mode=0o755)
        user = pwd.getpwnam("munge")
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_munge = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        run(*as_munge, _path("mungekey"), "-c", "-k", folder / "key")
        # Many test runs share few cores; a job's credentials must not expire meanwhile, so the clock is not hurried.
        self._daemon("munged", [*as_munge, _path("munged"), "--foreground", f"--key-file={folder}/key",
                                f"--socket={folder}/sock", f"--pid-file={folder}/pid", f"--log-file={folder}/log",
                                f"--seed-file={folder}/seed", "--num-threads=2"])  # fmt: skip
        wait_for((folder / "sock").exists, what="munged")

    def _write_conf(self):
        memory = " RealMemory=8000" if self._accounting else ""
        select = "CR_Core_Memory\nDefMemPerCPU=1000" if self._accounting else "CR_Core"
        nodes = "".join(
            f"NodeName={name} NodeAddr={self.hosts.address(name)} CPUs={self._cpus}{memory} State=UNKNOWN\n"
            for name in self.names
        )
        for name in ("state", "spool"):
            (self.folder / name).mkdir(exist_ok=True)
        gather = "linux\nJobAcctGatherFrequency=1\nJobAcctGatherParams=OverMemoryKill" if self._accounting else "none"
        storage = _ACCOUNTING if self._accounting else _NO_ACCOUNTING
        storage = storage.format(
            host=self.hosts.gateway, port=DBD_PORTS + self.hosts.number, socket=self.folder / "munge/sock"
        )
        more = _PREEMPTION if self._accounting else ""
        self.conf.write_text(
            f"ClusterName=dd\nSlurmctldHost={socket.gethostname().split('.')[0]}({self.hosts.gateway})\n"
            f"SlurmctldPort={self._port}\nSlurmdPort={SLURMD_PORT}\n"
            f"SlurmUser=root\nAuthType=auth/munge\nAuthInfo=socket={self.folder}/munge/sock\n"
            f"ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/{gather}\n"
            f"{storage}MpiDefault=none\nSwitchType=switch/none\n"
            f"SelectType=select/cons_tres\nSelectTypeParameters={select}\nSlurmdParameters=config_overrides\n"
            "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=2\n"
            f"ReturnToService=2\nStateSaveLocation={self.folder}/state\nSlurmdSpoolDir={self.folder}/spool/%n\n"
            f"SlurmctldPidFile={self.folder}/ctld.pid\nSlurmdPidFile={self.folder}/%n.pid\n"
            f"SlurmctldLogFile={self.folder}/ctld.log\nSlurmdLogFile={self.folder}/%n.log\n"
            f"InactiveLimit=0\nKillWait=5\n{nodes}"
            "PartitionName=dd Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
            f"PartitionName=short Nodes={self.names[0]} MaxTime=1 State=UP\n{more}{self._more}"
        )

        # Before 23.11 slurmd starts without this, and does not know the word.
        if tuple(map(int, run(_path("slurmd"), "-V").stdout.split()[1].split(".")[:2])) >= (23, 11):
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")

    def _start_accounting(self):
        """Start MariaDB, which only a socket in this folder leads to, and slurmdbd; add an account and a QOS."""
        data = self.folder / "db"
        data.mkdir()
        tables = f"create database mysql;\nuse mysql;\nset @auth_root_socket=NULL;\n{_TABLES.read_text()}"
        run(_path("mariadbd"), *_MARIADB, "--bootstrap", f"--datadir={data}", input=tables)
        self._daemon("mariadbd", [_path("mariadbd"), *_MARIADB, "--skip-grant-tables", f"--datadir={data}",
                                  f"--socket={self.folder}/db.sock", f"--pid-file={self.folder}/db.pid"])  # fmt: skip
        wait_for((self.folder / "db.sock").exists, what="MariaDB")
        conf = self.folder / "slurmdbd.conf"  # where slurmdbd looks: beside slurm.conf
        conf.write_text(
            f"DbdHost={socket.gethostname().split('.')[0]}\nDbdAddr={self.hosts.gateway}\n"
            f"DbdPort={DBD_PORTS + self.hosts.number}\nSlurmUser=root\nAuthType=auth/munge\n"
            f"AuthInfo=socket={self.folder}/munge/sock\nStorageType=accounting_storage/mysql\nStorageHost=localhost\n"
            f"StorageUser=root\nStorageLoc=slurm\nLogFile={self.folder}/dbd.log\nPidFile={self.folder}/dbd.pid\n"
        )
        conf.chmod(0o600)
        self.start_accounting()
        for what in ("cluster dd", "account physics description=p organization=p",
                     "account biology description=b organization=b", "qos long", "qos night",
                     "user root account=physics qos=normal,long"):  # fmt: skip
            self.run("sacctmgr", "--immediate", "add", *what.split())
        self.run("sacctmgr", "--immediate", "modify", "user", "root", "set", "defaultaccount=physics")

    def _start_node(self, name):
        folders = " ".join(f"mount -t tmpfs none {folder} &&" for folder in self._private.get(name, ()))
        space = self.hosts.space(name)
        # "ip netns exec" would hide /sys/fs/cgroup, without which slurmd does not start.
        inside = (f"hostname {name}; mount --make-rprivate / && mount --bind /etc/netns/{space}/hosts /etc/hosts && "
                  f"{folders} exec {_path('slurmd')} -D -f {self.conf} -N {name}")  # fmt: skip
        (self.folder / "spool" / name).mkdir(parents=True, exist_ok=True)
        self._daemon(name, ["nsenter", f"--net=/run/netns/{space}", "unshare", "--uts", "--mount", "sh", "-c", inside])

    def _daemon(self, name, command, **variables):
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                env={**os.environ, **variables},
            )  # fmt: skip

    def _await_idle(self):
        def idle():
            with contextlib.suppress(subprocess.CalledProcessError):
                return set(self.states().values()) == {"idle"}

        wait_for(idle, what=f"Slurm in {self.folder}")

    def down(self):
        """Take all of it away, with whatever still runs there."""
        self.hosts.down()
        for daemon in self._daemons.values():
            daemon.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def two_nodes():
    """Two nodes for the whole run; whoever changes them sets them right again."""
    if missing():
        pytest.skip(missing())
    slurm = Slurm(2)
    yield slurm
    slurm.down()


@pytest.fixture
def slurm(two_nodes, monkeypatch):
    """Two nodes, to which Slurm's commands in this test speak."""
    monkeypatch.setenv("SLURM_CONF", str(two_nodes.conf))
    return two_nodes


@pytest.fixture(scope="session")
def accounted():
    """Two nodes with accounting and preemption."""
    if missing_accounting():
        pytest.skip(missing_accounting())
    slurm = Slurm(2, accounting=True)
    yield slurm
    slurm.down()


@pytest.fixture
def site(accounted, monkeypatch):
    """The two nodes with accounting and preemption, to which Slurm's commands in this test speak."""
    monkeypatch.setenv("SLURM_CONF", str(accounted.conf))
    return accounted


@pytest.fixture
def slurm_of(monkeypatch):
    """Make a Slurm for one test: ``slurm_of(3)``."""
    if missing():
        pytest.skip(missing())
    made = []

    def make(count=2, **options):
        made.append(Slurm(count, **options))
        monkeypatch.setenv("SLURM_CONF", str(made[-1].conf))
        return made[-1]

    yield make
    for one in made:
        one.down()
