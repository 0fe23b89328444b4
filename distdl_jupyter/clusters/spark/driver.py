"""``python -m distdl_jupyter.clusters.spark.driver stage|nodes``: the process that holds a session of Spark.

It reads one line of JSON from its standard input, tells of what it does in lines of JSON (why the stage waits, how many
tasks it has, an error with its remedy), and ends when that input ends: then the stage is canceled and the session
stopped.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from distdl_jupyter.clusters.agents.tcp_link import distinct
from distdl_jupyter.clusters.spark.options import LOOK_AT_MASTER, Order, SparkOptions, addresses
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.node import connect_back

#: Seconds for all executors to register before a job begins with fewer, or a check with those that are there.
_SETTLE_SECONDS = 15.0
#: Executors that are listed, and seconds without a new one after which no more are expected.
_MOST = 1000
_MORE_SECONDS = 2.0
#: Seconds between two looks at the executors.
_LOOK_SECONDS = 0.2
_Carrier = Callable[[Iterable[Any]], Iterator[Any]]


# on an executor -----------------------------------------------------------------------------------


def _carrier(source: str, back: Mapping[str, Any], python: str) -> _Carrier:
    """Return what a task of the stage runs: ``connect_back``, whose text is ``source``.

    It is pickled by value, for executors need not have this package: nothing in it is looked up outside of it.
    """

    def run(rows: Iterable[Any]) -> Iterator[Any]:
        import os

        from pyspark import BarrierTaskContext

        for _ in rows:  # Spark expects that a task reads them
            pass
        # What Spark has set for its own processes is not the agent's.
        own = ("SPARK_", "PYSPARK_", "_PYSPARK_", "PYTHON_", "DISTDL_", "PYTHONHASHSEED", "PYTHONUNBUFFERED",
               "OMP_NUM_THREADS", "SIMPLIFIED_TRACEBACK")  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        ours = ("pyspark", "py4j", "spark-")
        paths = [path for path in environment.pop("PYTHONPATH", "").split(os.pathsep)
                 if path and not path.rpartition("/")[2].startswith(ours)]  # fmt: skip
        if paths:
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        task: Any = BarrierTaskContext.get()
        if "gpu" in task.resources():
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(task.resources()["gpu"].addresses)
        scope: dict[str, Any] = {"__name__": "connect_back"}
        exec(source, scope)  # noqa: S102 - it is this package's own
        place = {"number": task.partitionId(), "attempt": task.attemptNumber()}
        scope["serve"](back, place, python, environment)
        return iter(())

    return run


# the process with the session ---------------------------------------------------------------------


class _Session(ABC):
    """A session of Spark that runs one stage."""

    def __init__(self, options: SparkOptions, host: str) -> None:
        self.options = options
        self.host = host

    def python(self, order: Order) -> str:
        """Return the path of the agents' Python, "" for that of Spark's own workers."""
        return self.options.python

    @abstractmethod
    def open(self, order: Order) -> None:
        """Begin. Raises what Spark raises."""

    @abstractmethod
    def count(self, order: Order) -> int:
        """Return how many tasks the stage is to have; it may take seconds where that depends on what is up."""

    def up(self) -> str:
        """Return what is up, in words, "" where that is not known."""
        return ""

    @abstractmethod
    def run(self, count: int, work: _Carrier, order: Order) -> None:
        """Run the stage to its end. Raises what Spark raises."""

    @abstractmethod
    def nodes(self) -> list[dict[str, Any]]:
        """Return the fields of ``NodeInfo`` of each executor."""

    @abstractmethod
    def stop(self) -> None:
        """End the stage and the session."""


class _Classic(_Session):
    """This process is Spark's driver."""

    _spark: Any = None
    _master: _Master | None = None
    _asks = True

    def open(self, order: Order) -> None:
        from pyspark import SparkConf, SparkContext

        settings = {**_settings(order, self.options, self.host), **self.options.settings()}
        self._spark = SparkContext(conf=SparkConf().setAll(list(settings.items())))
        self._spark.setLogLevel("ERROR")

    def count(self, order: Order) -> int:
        if order.least == order.tasks:
            return order.tasks
        until = since = time.monotonic() + _SETTLE_SECONDS
        seen = 0
        while time.monotonic() < until and seen < order.tasks:
            found = len(self._executors()) if order.whole else sum(int(one.maxTasks()) for one in self._executors())
            if found != seen:
                seen, since = found, time.monotonic()
            if seen >= order.least and time.monotonic() - since > _MORE_SECONDS:
                break
            time.sleep(_LOOK_SECONDS)
        return max(order.least, min(seen, order.tasks))

    def up(self) -> str:
        executors = self._executors()
        if executors:
            own = plural(sum(int(one.totalCores()) for one in executors), "core")
            return f"{plural(len(executors), 'executor')} with {own} are up"
        if (found := self._asked()) is None:
            return "none is up"
        workers = [one for one in found.workers if one.isAlive()]
        there = f"{plural(len(workers), 'worker')} with {plural(sum(int(one.cores()) for one in workers), 'core')}"
        shared = f"{plural(found.applications, 'application')} share" if found.applications > 1 else "this job may use"
        return f"none is up; {shared} {there}"

    def _executors(self) -> list[Any]:
        store = self._spark._jsc.sc().statusStore()  # noqa: SLF001 - Spark's own pages read it
        found = store.executorList(True)  # noqa: FBT003 - Java has no names for arguments
        rows = [found.apply(at) for at in range(found.size())]
        return [
            one for one in rows if one.isActive() and (one.id() != "driver" or self._spark.master.startswith("local["))
        ]

    def run(self, count: int, work: _Carrier, order: Order) -> None:
        self._spark.parallelize(range(count), count).barrier().mapPartitions(work).collect()

    def nodes(self) -> list[dict[str, Any]]:
        if (asked := self._asked()) is not None:
            names = distinct([_host_name(one.host()) for one in asked.workers])
            return [{"name": name, **_worker(one)} for name, one in zip(names, asked.workers, strict=True)]
        order = Order("nodes", tasks=_MOST, whole=True)
        self.open(order)
        self.count(order)
        found = self._executors()
        names = distinct([_host_name(one.hostPort().rpartition(":")[0]) for one in found])
        return [{"name": name, "cores": int(one.totalCores()), "gpus": self.options.gpus_per_node}
                for name, one in zip(names, found, strict=True)]  # fmt: skip

    def _asked(self) -> _State | None:
        """Return what the master of a standalone cluster says, None where there is none to be asked."""
        if not self._asks:
            return None
        self._asks = False  # unless it goes well
        with contextlib.suppress(Exception):  # of Spark's own parts, which other versions may not have
            self._master = self._master or _Master(self.options, self.host)
            found = self._master.state()
            self._asks = True
            return found
        return None

    def stop(self) -> None:
        if self._spark is not None:
            java = self._spark._gateway.proc  # noqa: SLF001 - nothing else says when it has ended
            self._spark.cancelAllJobs()
            self._spark.stop()
            java.stdin.close()
            java.wait()


class _Shared(_Classic):
    """The session of this process, which has other work too and goes on."""

    def __init__(self, options: SparkOptions, host: str, context: Any) -> None:
        super().__init__(options, host)
        self._spark = context
        self._asks = False
        self._group = f"distdl-{os.urandom(8).hex()}"
        self._stopped = threading.Event()

    def python(self, order: Order) -> str:
        return self.options.python or order.python

    def open(self, order: Order) -> None:
        """Nothing: it is open."""

    def run(self, count: int, work: _Carrier, order: Order) -> None:
        self._spark.setJobGroup(self._group, f"distdl job {order.name}", interruptOnCancel=True)
        tasks = self._spark.parallelize(range(count), count)
        if (profile := _profile(self.options, order)) is not None:
            tasks = tasks.withResources(profile)
        _when_there_is_room(lambda: tasks.barrier().mapPartitions(work).collect(), self._stopped)

    def stop(self) -> None:
        self._stopped.set()
        self._spark.cancelJobGroup(self._group)


def _when_there_is_room(run: Callable[[], object], stopped: threading.Event) -> None:
    """Run a stage as soon as the cluster has so many slots."""
    while not stopped.is_set():
        try:
            run()
        except Exception as error:
            if "SPARK-24819" not in str(error):  # more slots than the cluster has at present
                raise
            stopped.wait(_TELL_SECONDS)
        else:
            return


def _profile(options: SparkOptions, order: Order) -> Any:
    """Return what each task needs beyond a core, None for no more."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    gpus = options.gpus_per_node
    if order.cpus == 1 and not gpus:
        return None
    wanted = TaskResourceRequests().cpus(order.cpus)
    return ResourceProfileBuilder().require(wanted.resource("gpu", gpus) if gpus else wanted).build


class _State(NamedTuple):
    """What the master of a standalone cluster knows: its workers, and how many applications it has."""

    workers: list[Any]
    applications: int


class _Master:
    """The master of a standalone cluster, which is asked as its own pages ask it; nothing of the cluster is taken."""

    def __init__(self, options: SparkOptions, host: str) -> None:
        """Raises what Spark raises, and ValueError where there is none."""
        from pyspark import SparkConf, SparkContext

        if not options.master.startswith("spark://"):
            raise ValueError(options.master)
        SparkContext._ensure_initialized(conf=SparkConf())  # noqa: SLF001 - Java without a session
        jvm: Any = SparkContext._jvm  # noqa: SLF001
        self._jvm = jvm
        conf = self._jvm.org.apache.spark.SparkConf()
        manager = self._object("org.apache.spark.SecurityManager")
        defaults = [getattr(manager, f"$lessinit$greater$default${at}")() for at in (2, 3)]
        security = self._jvm.org.apache.spark.SecurityManager(conf, *defaults)
        own = host if _is_ours(host) else "0.0.0.0"  # noqa: S104 - the address is translated
        environment = self._jvm.org.apache.spark.rpc.RpcEnv.create("distdl", own, 0, conf, security, True)  # noqa: FBT003
        messages = "org.apache.spark.deploy.DeployMessages$"
        self._question = self._object(f"{messages}RequestMasterState")
        answer = self._jvm.java.lang.Class.forName(f"{messages}MasterStateResponse")
        self._tag = self._object("scala.reflect.ClassTag").apply(answer)
        self._masters = []
        for host_and_port in addresses(options):
            address = self._jvm.org.apache.spark.rpc.RpcAddress(*host_and_port)
            with contextlib.suppress(Exception):  # one that stands by may be down
                self._masters.append(environment.setupEndpointRef(address, "Master"))

    def _object(self, name: str) -> Any:
        return self._jvm.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)

    def state(self) -> _State:
        """Ask. Masters that stand by know nothing."""
        if not self._masters:
            raise ValueError("no master responds")
        found = [master.askSync(self._question, self._tag) for master in self._masters]
        workers = [worker for one in found for worker in one.workers()]
        return _State(workers, sum(len(one.activeApps()) for one in found))


def _worker(worker: Any) -> dict[str, Any]:
    """Return the fields of ``NodeInfo`` of a worker of a standalone cluster."""
    state, gpus = str(worker.state().toString()), worker.resourcesInfo().get("gpu")
    up = state == "ALIVE"
    return {
        "state": "up" if up else "down",
        "detail": "" if up else f"is {state.lower()}",
        "cores": int(worker.cores()),
        "gpus": len(gpus.get().addresses()) if gpus.isDefined() else 0,
    }


class _Connect(_Session):
    """The driver is a Spark Connect server."""

    _spark: Any = None

    def open(self, order: Order) -> None:
        from pyspark.sql import SparkSession

        builder: Any = SparkSession.builder.remote(self.options.remote).appName(f"distdl-{order.name}")
        for name, value in self.options.settings().items():
            builder = builder.config(name, value)
        self._spark = builder.create()
        self._spark.version  # noqa: B018 - it asks the server

    def count(self, order: Order) -> int:
        return max(order.least, min(len(self._hosts()), order.tasks)) if order.whole else order.tasks

    def run(self, count: int, work: _Carrier, order: Order) -> None:
        profile, tasks = _profile(self.options, order), self._spark.range(0, count, 1, count)
        _when_there_is_room(
            lambda: tasks.mapInArrow(work, "id long", barrier=True, profile=profile).collect(), threading.Event()
        )

    def nodes(self) -> list[dict[str, Any]]:
        self.open(Order("nodes"))
        return [{"name": name, "cores": cores, "gpus": self.options.gpus_per_node} for name, cores in self._hosts()]

    def _hosts(self) -> list[tuple[str, int]]:
        """Return name and cores of each host on which the server has executors."""
        rows = self._spark.range(0, _PROBES, 1, _PROBES).mapInArrow(_described(), "host string, cores int").collect()
        return sorted({(str(row.host), int(row.cores)) for row in rows})

    def stop(self) -> None:
        if self._spark is not None:
            self._spark.interruptAll()
            self._spark.stop()


#: Seconds between two reports of what a stage waits for, and for the end of a session.
_TELL_SECONDS = 1.0
_STOP_SECONDS = 6.0
#: Tasks of the short job that finds executors through Spark Connect.
_PROBES = 32


def _described() -> _Carrier:
    """Return what says, in a task, on which machine it runs."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import os
        import socket
        import time

        import pyarrow as pa

        for _ in batches:
            pass
        time.sleep(0.2)  # so that no executor takes all of the tasks
        yield pa.RecordBatch.from_pydict(
            {"host": [socket.gethostname()], "cores": pa.array([os.cpu_count() or 0], pa.int32())}
        )

    return run


def _settings(order: Order, options: SparkOptions, host: str) -> dict[str, str]:
    """Return the settings of Spark for a stage; the user's come over them."""
    found = {
        "spark.master": options.master,
        "spark.app.name": f"distdl-{order.name}",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": host,
        "spark.driver.bindAddress": host if _is_ours(host) else "0.0.0.0",  # noqa: S104 - the address is translated
        "spark.dynamicAllocation.enabled": "false",
        "spark.speculation": "false",
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": str(2**31 - 1),
        "spark.task.cpus": str(order.cpus),
    }
    if not order.whole:
        found |= {"spark.executor.cores": str(order.cpus), "spark.executor.instances": str(order.tasks),
                  "spark.cores.max": str(order.cpus * order.tasks)}  # fmt: skip
    if options.gpus_per_node:
        found |= dict.fromkeys(("spark.executor.resource.gpu.amount", "spark.task.resource.gpu.amount"),
                               str(options.gpus_per_node))  # fmt: skip
    return found


def _is_ours(host: str) -> bool:
    """Say whether this machine has the address itself."""
    with contextlib.suppress(OSError), socket.create_server((host, 0)):
        return True
    return False


def _host_name(address: str) -> str:
    """Return the name of a host that Spark knows by its address."""
    if _is_ours(address):
        return socket.gethostname()
    with contextlib.suppress(OSError):
        return socket.gethostbyaddr(address)[0].partition(".")[0]
    return address


def _work(
    session: _Session, order: Order, back: Mapping[str, Any], tell: Callable[..., object], ended: threading.Event
) -> None:
    """Run the stage."""
    _reach(session.options)
    tell(waits=f"starting a session of Spark at {session.options.address}")
    session.open(order)
    count = session.count(order)
    tell(tasks=count)
    waiting = threading.Thread(target=_tell_slots, args=(session, count, order, tell, ended), daemon=True)
    waiting.start()
    source = Path(connect_back.__file__).read_text(encoding="utf-8")
    session.run(count, _carrier(source, back, session.python(order)), order)


def _tell_slots(
    session: _Session, count: int, order: Order, tell: Callable[..., object], ended: threading.Event
) -> None:
    """Tell from time to time what the stage waits for."""
    wanted = f"waiting for {plural(count, 'executor')} of Spark with {plural(order.cpus, 'core')}"
    if session.options.gpus_per_node:
        wanted += f" and {plural(session.options.gpus_per_node, 'GPU')}"
    wanted += " each" if count > 1 else ""
    with contextlib.suppress(Exception):  # the session ends
        while not ended.is_set():
            tell(waits="; ".join(filter(None, (wanted, session.up()))))
            ended.wait(_TELL_SECONDS)


def _list(session: _Session, tell: Callable[..., object]) -> None:
    """Tell of the executors."""
    _reach(session.options)
    tell(nodes=session.nodes())


def _reach(options: SparkOptions) -> None:
    """Raise LaunchFailed when no master answers, for which Spark itself waits a minute."""
    why = ""
    for address in addresses(options) if options.remote or options.master.startswith("spark://") else ():
        try:
            with socket.create_connection(address, 5.0):
                return
        except OSError as error:
            why = f"{error.strerror or error}"
    if why:
        raise LaunchFailed(
            f"Spark at {options.address} does not respond: {why}.", code="spark-unreachable", hint=LOOK_AT_MASTER
        )


#: What Spark's own words mean.
_WORDS: tuple[tuple[str, Callable[..., str], str], ...] = (
    (r"distdl: ([\w.-]+ cannot reach \S+: [^\n]*)", lambda why: f"{why}.",
     "Set the option host to an address of this machine that Spark's executors can reach, and open its ports to them."),
    (r"SPARK-24942", lambda: "Spark adds and removes executors dynamically, so the tasks cannot start together.",
     "Start the session with spark.dynamicAllocation.enabled=false."),
    (r"JAVA_GATEWAY_EXITED", lambda: "Spark's driver did not start.",
     "Read its output. Spark 4 needs Java 17 or newer."),
    (r"different version: \(?([\d., ]+)\)? than that in driver:? \(?([\d., ]+)\)?",
     lambda there, here: f"The executors run Python {there}, but this job runs Python {here}.",
     "Set the option python to the path of the job's Python version on the executors."),
    (r'Cannot run program "([^"]+)"', lambda path: f"There is no Python at {path} on the executors.",
     "Set the option python to the path of Python on the executors."),
    (r"No module named '?(py[\w.]+)", lambda name: f"{name} is not installed in the Python of the executors.",
     "Install it on the executors, or set the option python."),
    (r"All masters are unresponsive|StatusCode.UNAVAILABLE|failed to connect to all addresses",
     lambda: "Spark does not respond.", LOOK_AT_MASTER),
)  # fmt: skip


def _explained(said: str, options: SparkOptions) -> tuple[str, str]:
    """Return one sentence for an error of Spark, and its remedy."""
    for pattern, sentence, hint in _WORDS:
        if found := re.search(pattern, said):
            return sentence(*(part.strip().replace(", ", ".") for part in found.groups())), hint
    return (
        f"Spark at {options.address} ended the job's stage: {_first_line(said)}.",
        "See the log of its executors.",
    )


def _first_line(said: str) -> str:
    """Return the first line of what Spark says that means something."""
    lines = [re.sub(r"^:?\s*(?:[\w.$]+(?:Exception|Error): )+", "", line.strip()) for line in said.splitlines()]
    kept = [
        line for line in lines if line and not line.startswith(("An error occurred while calling", "Traceback", "at "))
    ]
    return (kept or ["no reason given"])[0][:300].rstrip(".:")


def serve(lines: IO[bytes], out: IO[bytes], ended: threading.Event, shared: Any = None) -> None:
    """Do what is read from ``lines``, write of it to ``out`` in lines of JSON; end with ``lines``, or when ``ended``.

    ``shared`` is the SparkContext of this process whose stage it shall be; without one a session is begun and ended.
    """

    def tell(**fields: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            out.write(json.dumps(fields).encode() + b"\n")
            out.flush()

    def listen() -> None:
        with contextlib.suppress(OSError, ValueError):
            lines.read()
        ended.set()

    given = json.loads(lines.readline())
    session = _session(SparkOptions(**given["options"]), Order(**given["order"]), given["back"]["host"], shared)
    for target in (functools.partial(_do, session, given, tell, ended), listen):
        threading.Thread(target=target, daemon=True).start()
    ended.wait()
    stopping = threading.Thread(target=session.stop, daemon=True)
    stopping.start()
    stopping.join(_STOP_SECONDS)
    if shared is None and stopping.is_alive():
        os.killpg(0, signal.SIGKILL)  # with Java


def _session(options: SparkOptions, order: Order, host: str, shared: Any) -> _Session:
    if shared is not None:
        return _Shared(options, host, shared)
    os.environ["PYSPARK_PYTHON"] = options.python or order.python or sys.executable
    return (_Connect if options.remote else _Classic)(options, host)


def _do(session: _Session, given: Mapping[str, Any], tell: Callable[..., object], ended: threading.Event) -> None:
    """Do what was asked for, and tell what comes of it."""
    try:
        if given["what"] == "stage":
            _work(session, Order(**given["order"]), given["back"], tell, ended)
        else:
            _list(session, tell)
    except DistDLError as error:
        tell(error=error.message, code=error.code, hint=error.hint)
    except Exception as error:  # noqa: BLE001 - whatever Spark raises is told
        sentence, hint = _explained(str(error), session.options)
        tell(error=sentence, code="spark-stage-failed", hint=hint)
    ended.set()


def main() -> None:
    """Serve who started this process."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Spark prints
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    serve(sys.stdin.buffer, out, ended)
    os._exit(0)  # no thread is waited for


if __name__ == "__main__":
    main()
