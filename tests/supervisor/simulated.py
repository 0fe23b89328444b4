"""A cluster whose nodes are played: a few real processes speak for many agents, each over a connection of its own.

Records, transport and everything on the supervisor's side are real: connections back over TLS, the agents' requests
and answers, ranks' lines and reports, beats, samples of resources, ends. Only the training is none: a rank is a few
numbers in its player. ``tests.plugin.install`` puts a copy of this file into a package of its own, so it imports
nothing of the tests.

What ranks say each second is that of a training with large batches: every step a metric of two values and progress,
the time of its steps once a second, a line now and then (rank 0 one a step). The line of a rank holds the moment in
which it was printed.
"""

import asyncio
import contextlib
import functools
import json
import os
import random
import ssl
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from distdl_jupyter.clusters.agents.cluster import AgentCluster, preview_placement
from distdl_jupyter.clusters.agents.links import AgentListener
from distdl_jupyter.clusters.agents.staging import AgentNodes
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.node import channels, facts
from distdl_jupyter.node.processes import StackDump
from distdl_jupyter.worker import channel, values

POINTS = {"clusters": {"simulated": "SimulatedCluster"}}
#: Seconds for all nodes to connect, and processes that play them.
CONNECT_SECONDS, PLAYERS = 60.0, 4
_INPUT, _OUTPUT = 0, 1
_PIECE = 256 * 1024
_BYTES = 2_000_000_000


@dataclass(frozen=True)
class SimulatedOptions:
    seconds: float = field(default=10.0, metadata={"help": "how long the ranks train"})
    step_seconds: float = field(default=0.5, metadata={"help": "how long a step takes"})
    lines: float = field(default=0.1, metadata={"help": "lines a second of each rank but the first"})
    fails: int = field(default=-1, metadata={"help": "the rank that raises after half of the time"})
    falls_silent: int = field(default=-1, metadata={"help": "the node that is lost after half of the time"})
    slow: int = field(default=-1, metadata={"help": "the rank that waits for its data"})
    directory: str = ""
    network: str = ""
    shared: bool | None = None
    oversubscribe: bool = True


class SimulatedCluster(AgentCluster):
    """Its nodes are played."""

    name = "simulated"
    title = "Simulated"
    Options = SimulatedOptions

    def default_options(self):
        return {}

    def __init__(self):
        super().__init__()
        self._players, self._port = [], None

    def unavailable(self, options):
        return ""

    def process_count_per_node(self, options, *, use_gpu):
        return 8

    def preview(self, spec, options):
        return preview_placement(spec, 0)

    def _connect(self, spec, options, context):
        context.report("stage", f"waiting for {spec.node_count} nodes")
        self._port = AgentListener("127.0.0.1", "{} has ended.".format)
        told = {"back": self._port.connect_info, "options": asdict(options), "ranks": spec.process_count,
                "per_node": spec.process_count_per_node, "meeting": str(context.folder.path / "meeting")}  # fmt: skip
        Path(told["meeting"]).mkdir(exist_ok=True)
        count = min(PLAYERS, spec.node_count)
        for first in range(count):
            command = [sys.executable, "-P", "-m", __name__]
            player = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2)
            player.stdin.write(json.dumps({**told, "nodes": [*range(first, spec.node_count, count)]}).encode())
            player.stdin.close()
            self._players.append(player)
        until = time.monotonic() + CONNECT_SECONDS
        while len(self._port.agents) < spec.node_count:
            if time.monotonic() > until or any(player.poll() for player in self._players):
                raise LaunchFailed(f"Only {len(self._port.agents)} of {spec.node_count} nodes are there.")
            time.sleep(0.02)
        self._port.close()
        self._connections = self._port.connect("~/.cache/distdl")
        return spec, []

    def _make_nodes(self, job, placement, context):
        players, self._players = self._players, []
        return SimulatedNodes(job, placement, context, self._nodes, players)

    def _release_nodes(self):
        super()._release_nodes()
        end(self._players)
        self._players = []

    def sweep(self, job_id, handle):
        return []


class SimulatedNodes(AgentNodes):
    """The nodes of a started job, with those who play them."""

    def __init__(self, job, placement, context, nodes, players):
        super().__init__(job, placement, context, nodes)
        self._players = players

    def handle(self):
        return {}

    def close(self):
        super().close()
        end(self._players)


def end(players):
    """End processes that should have ended by themselves, because their connections did."""
    for player in players:
        with contextlib.suppress(subprocess.TimeoutExpired):
            player.wait(5.0)
        player.kill()
        player.wait()


# players --------------------------------------------------------------------------------------


class Rank:
    """A rank that trains: ``say`` sends bytes of one of its streams, ``ended`` is told how its process ended."""

    def __init__(self, process, host, own, say, ended):
        environment = process["environment"]
        self.rank, self.pid = process["process"], 100_000 + process["process"]
        self.folder = Path(environment["DISTDL_JOB_DIR"])
        self._nonce, self._host = environment["DISTDL_NONCE"], host
        self._own, self._say, self._ended = own, say, ended
        self._channels = process["out"], process["err"]
        self._chance = random.Random(self.rank)
        self._memory = _BYTES + self._chance.randrange(10**8)
        self.step, self.over = 0, False
        self._records, self._first, self._told = [], 0, 0.0

    def report(self, type_, **fields):
        moment = round(time.time(), 4)
        return channel.encode(self._nonce, {"type": type_, "t": moment, "rank": self.rank, **fields})

    def out(self, content):
        self._say(self._channels[0], content)

    def begin(self):
        versions = {"torch": "2.13.0"}
        self.out(self.report("hello", pid=self.pid, host=self._host, python="3.11.7", versions=versions)
                 + self.report("rendezvous"))  # fmt: skip

    def met(self):
        self.out(self.report("ready"))

    def train(self):
        """Do a step."""
        own, chance = self._own, self._chance
        seconds, step = own["step_seconds"], self.step
        loss, moment = 2.0 * 0.99**step + 0.1 * chance.random(), time.time()
        values = f'{{"loss":{loss:.6f},"accuracy":{min(0.99, 0.4 + step / 400):.4f}}}'
        head = f'{{"type":"metric","t":{moment:.4f},"rank":{self.rank},"step":{step},"values":{values}}}\n'
        total = round(own["seconds"] / seconds)
        told = [channel.make_marker(self._nonce), head.encode()]
        told.append(self.report("progress", done=step + 1, total=total, unit="steps"))
        if self.rank == 0 or chance.random() < own["lines"] * seconds:
            told.append(f"rank {self.rank} step {step} loss {loss:.4f} printed {time.time():.4f}\n".encode())
        micro = int(seconds * 1e6)
        late = micro // 3 if self.rank == own["slow"] else 0
        # Who comes last waits for nobody; all others wait for it.
        wait = micro // 8 + (0 if late else micro // 3 * (own["slow"] >= 0) + chance.randrange(1000))
        self._records.append([micro, 3000 + late, 1000, 256, wait, micro // 8])
        self.step += 1
        if time.monotonic() - self._told > 1.0:
            self._told = time.monotonic()
            told.append(self.report("steps", first=self._first, size=1, records=self._records))
            self._records, self._first = [], self.step
        self.out(b"".join(told))

    def finish(self):
        size, problem = values.save(self.folder, self.rank, self.step)
        self.out(self.report("result", ok=True, repr=str(self.step), bytes=size, error=None, problem=problem))
        self.end(0, None)

    def fail(self, type_="KeyError", message="'label'", code=1):
        error = {
            "type": type_,
            "message": message,
            "traceback": f"Traceback\n{type_}: {message}\n",
            "time": time.time(),
        }
        self.out(self.report("result", ok=False, repr="", bytes=0, error=error))
        self._say(self._channels[1], f"{type_}: {message}\n".encode())
        self.end(code, None)

    def end(self, code, signal):
        if not self.over:
            self.over = True
            for channel in self._channels:
                self._say(channel, b"")
            self._ended(self.rank, code, signal)

    def signal(self, name):
        if self.over:
            return
        if name == "INT":
            self.fail("KeyboardInterrupt", "", 130)
        else:
            self.end(None, name)

    def use(self):
        return [round(self._chance.uniform(95, 105), 1), self._memory]


class PlayedNode:
    """The agent of one node, as ``node.agent`` is one."""

    def __init__(self, number, told, known):
        self._number, self._told, self._known = number, told, known
        self._own = told["options"]
        self._name = f"node-{number:03}"
        self._address = f"10.77.{number // 250}.{number % 250 + 1}"
        self._ranks = {}
        self._reader = channels.FrameReader(expect_handshake=False)
        self._hears = False
        self._silent = self._over = False
        self._tasks = []

    async def play(self):
        back = self._told["back"]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=back["certificate"])
        reader, self._writer = await asyncio.open_connection(back["host"], back["port"], ssl=context)
        own = {"number": self._number, "hostname": self._name, "address": self._address, "attempt": 0}
        self._writer.write(json.dumps({**own, "secret": back["secret"]}).encode() + b"\n")
        with contextlib.suppress(OSError):
            await self._hear(reader)
        for task in self._tasks:
            task.cancel()
        self._writer.close()

    async def _hear(self, reader):
        outer = channels.FrameReader(expect_handshake=False)
        while not self._over and (content := await reader.read(_PIECE)):
            for piece in outer.feed(content):
                if piece.channel == _INPUT:
                    self._take(piece.bytes)
            await self._writer.drain()

    def _take(self, content):
        if not self._hears:  # the first line is the program that becomes an agent
            _, newline, content = content.partition(b"\n")
            if not newline:
                return
            self._hears = True
            self._write(channels.HANDSHAKE)
            self._tasks.append(asyncio.create_task(self._live()))
        for frame in self._reader.feed(content):
            if isinstance(frame, dict) and "request" in frame and not self._silent:
                found = getattr(self, f"_{frame['type']}")(frame)
                self._send("reply", **found, request=frame["request"])
                if frame["type"] == "end":
                    self._over = True
                    self._writer.write(channels.encode_message("exit", code=0))

    def _write(self, content):
        if not self._silent and not self._writer.is_closing():
            self._writer.write(channels.encode_data(_OUTPUT, content))

    def _send(self, type_, **fields):
        self._write(channels.encode_message(type_, **fields))

    def _say(self, channel, content):
        self._write(channels.encode_data(channel, content))

    async def _live(self):
        """Give signs of life and samples of what is used."""
        while True:
            await asyncio.sleep(1.0)
            running = {str(one.rank): one.use() for one in self._ranks.values() if not one.over}
            if running:
                used = sum(memory for _, memory in running.values())
                node = {"cpu": 100.0 * len(running), "memory": used, "limit": 64 * 10**9, "disk_read": 0,
                        "disk_written": 10**5, "received": 10**8, "sent": 10**8}  # fmt: skip
                about = {"host": self._name, "cores": 16, "gpus": [], "no_gpus": ""}
                sample = {"t": time.time(), "node": node, "ranks": running, "gpus": {}, "about": about}
                self._send("resources", samples=[sample])
                await self._writer.drain()
            self._send("beat", alive=len(running))

    async def _train(self):
        """Let the ranks make their steps, and end as it was said."""
        own = self._own
        for one in self._ranks.values():
            one.begin()
        await self._met()
        begun = time.monotonic()
        for one in self._ranks.values():
            one.met()
        steps = round(own["seconds"] / own["step_seconds"])
        for step in range(steps):
            if own["falls_silent"] == self._number and step == steps // 2:
                self._silent = True
            for one in self._ranks.values():
                if not one.over and one.rank == own["fails"] and step == steps // 2:
                    one.fail()
                elif not one.over:
                    one.train()
            await self._writer.drain()
            await asyncio.sleep(max(0.0, begun + (step + 1) * own["step_seconds"] - time.monotonic()))
        for one in self._ranks.values():
            if not one.over:
                one.finish()

    async def _met(self):
        """Wait for the ranks of all nodes."""
        meeting = Path(self._told["meeting"])
        (meeting / self._name).touch()
        while len(os.listdir(meeting)) * self._told["per_node"] < self._told["ranks"]:  # noqa: ASYNC110 - others' files
            await asyncio.sleep(0.2)

    # requests ---------------------------------------------------------------------------------

    def _facts(self, asked):
        network = {"name": "sim0", "address": self._address, "prefix": 16, "up": True, "loopback": False,
                   "speed": 100_000, "virtual": False}  # fmt: skip
        known = self._known(tuple(asked["modules"]), tuple(asked["programs"]), tuple(asked["packages"]))
        now = time.time()
        return {**known, "host": self._name, "interfaces": [network], "cores": 16, "load": 0.1, "time": now,
                "until": now}  # fmt: skip

    def _listen(self, asked):
        return {"port": 1}

    def _reach(self, asked):
        return {"reached": [[address, port, ""] for address, port in asked["targets"]]}

    def _ports(self, asked):
        return {"ports": [20_000 + number for number in range(asked["count"])]}

    def _prepare(self, asked):
        name, text = asked["proof"]
        seen = Path(asked["folder"], name).read_text() == text
        return {"shared": seen, "folder": asked["folder"], "run": asked["folder"], "working_directory_there": True}

    def _start(self, asked):
        begun = [Rank(one, self._name, self._own, self._say, self._rank_ended) for one in asked["processes"]]
        self._ranks |= {one.rank: one for one in begun}
        if len(self._ranks) == self._told["per_node"]:
            self._tasks.append(asyncio.create_task(self._train()))
        return {"pids": {one.rank: one.pid for one in begun}}

    def _rank_ended(self, rank, code, signal):
        self._send("exit", kind="rank", process=rank, code=code, signal=signal, evidence="")

    def _signal(self, asked):
        meant = [one for one in self._ranks.values() if not one.over]
        for one in meant:
            one.signal(asked["name"])
        return {"sent": len(meant)}

    def _alive(self, asked):
        alive = sum(not one.over for one in self._ranks.values())
        return {"alive": alive, "workers": alive}

    def _stuck(self, asked):
        return {"pids": []}

    def _expect(self, asked):
        return {}

    def _profile(self, asked):
        return {}

    def _drain(self, asked):
        return {"evidence": ""}

    def _stacks(self, asked):
        def stack(rank):
            waits = "all_reduce" if rank != self._own["slow"] else "read_batch"
            text = f'Thread 0x00007f0000000001 (most recent call first):\n  File "train.py", line 12 in {waits}\n'
            text += '  File "train.py", line 30 in train\n'
            return asdict(StackDump(text, state="sleeping", about={"pid": 100_000 + rank, "rank": rank}))

        self._send("stacks", answers={str(rank): stack(rank) for rank in asked["ranks"]})
        return {}

    def _end(self, asked):
        left = [one for one in self._ranks.values() if not one.over]
        return {"ended": len(left)}


def play(told):
    """Play nodes until their connections end."""
    known = functools.lru_cache(facts.gather)

    async def all_nodes():
        await asyncio.gather(*(PlayedNode(number, told, known).play() for number in told["nodes"]))

    asyncio.run(all_nodes())


if __name__ == "__main__":
    play(json.load(sys.stdin))
