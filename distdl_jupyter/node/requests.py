"""What a supervisor may ask of the agent, and the answers.

Every request is answered exactly once: with fields, or with ``error``, one sentence. What takes long is done in a
thread and answered when it is done. The messages:

======== ============================================== ====================================================
type     fields                                         reply
======== ============================================== ====================================================
facts    modules, programs, packages (all optional)     what ``facts.gather`` returns
listen   address                                        port
reach    targets, seconds                               reached
prepare  job, folder, proof: [name, text] or null,      shared, folder, run, and working_directory_there
         base, working_directory (optional)             when it was asked for
put      channel; then a tar as data of it, b"" ends it files, bytes (when all is written)
get      channel, paths                                 a tar as data, b"" ends it; then files, bytes, skipped
ports    count, address                                 ports
look     path                                           fingerprint, null where nothing can be read
copied   digest, base                                   path of a folder with this content, "" without one
copy     channel, digest, base; then a tar as data,     path, files, bytes (when all is there)
         b"" ends it
start    processes: [{kind, process, argv, environment, pids: {process: pid}; data of ``out`` and ``err`` and a
         directory, out, err, open_input, python}]      message ``exit`` {kind, process, code, signal, evidence}
feed     kind, text                                     (nothing) when its standard input has taken it
pipes    ranks: [{rank, out, err}], variables           (nothing) data of ``out`` and ``err``
signal   name: INT, TERM, KILL; to: ranks, all          sent
alive                                                   alive, and how many of them are workers
stuck                                                   pids that no signal reaches
stacks   ranks                                          answers: {rank: ``stacks.Answer`` as data}
profile  ranks, recording                               (nothing) ranks find the request (``worker.hooks.profile``)
serving  rank                                           where a persistent rank listens: socket, token
connect  rank, channel                                  (nothing) the channel is a connection to that rank, both ways
hold     channel, held                                  (nothing) nothing is read for the channel while it is held; a
                                                        message ``hold`` asks the same of the supervisor
drain                                                   evidence of a KILL for lack of memory, "" without any,
                                                        after all that was written until now
answer   shell, then any of out, err (texts), code      (nothing)
slots    job, name, need: [gpus, devices, amounts],     held: devices of its own, null while it waits; then
         priority, number                               turn (``slots.Turn`` as data), limits
sweep    job, base                                      found
end      keep                                           ended; the agent exits
======== ============================================== ====================================================

``open_input`` is for services: their input ends with the job, and ``alive`` and ``signal`` leave them out. ``beat``
is no request. Without a number ``request`` nothing is answered.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from distdl_jupyter.node import children, data_cache, files, job, processes, run_dir
from distdl_jupyter.node.files import Incoming, Refused, send_files

if TYPE_CHECKING:
    from distdl_jupyter.node.agent import Agent

Fields = Mapping[str, Any]
Answer = dict[str, Any]
#: Seconds in which a rank's socket takes a connection; it waits only where very many came at once.
_CONNECT_SECONDS = 1.0
#: Returns an answer, or None when it is given later.
Handler = Callable[[Any, Fields], Answer | None]


class JobHost(Protocol):
    """What answers the requests of a job: an agent, or the part of the supervisor that takes its place here."""

    @property
    def job(self) -> job.Job | None:
        """The job, None before ``prepare``."""

    def later(self, fields: Fields, work: Callable[[], Answer]) -> Answer | None:
        """Do ``work`` without holding up anything else; None when its answer is given later."""


class Unanswerable(Exception):
    """A request failed; the text is the error message."""


def answer(agent: Agent, fields: Fields) -> Answer | None:
    """Do what is asked; an error becomes an answer. None when the answer comes later."""
    handler = HANDLERS.get(str(fields["type"]))
    if handler is None:
        return {"error": f"Unknown request {fields['type']!r}."}
    try:
        return handler(agent, fields)
    except Exception as error:  # noqa: BLE001  no request may end the agent
        return failure(str(fields["type"]), error)


def failure(type_: str, error: Exception) -> Answer:
    """Return an error as an answer: one sentence."""
    if isinstance(error, (Unanswerable, children.NotStarted, Refused)):
        return {"error": str(error)}
    if isinstance(error, OSError):
        return {"error": _os_error(error)}
    return {"error": f"The request {type_!r} is not valid: {type(error).__name__}: {str(error).removesuffix('.')}."}


def _os_error(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    return f"{error.strerror}: {error.filename}." if error.filename else f"{error.strerror}."


# before a job --------------------------------------------------------------------------------------


def _facts(agent: Agent, fields: Fields) -> None:
    def gather() -> Answer:
        from distdl_jupyter.node import facts

        return facts.gather(*(_texts(fields, name) for name in ("modules", "programs", "packages")))

    agent.later(fields, gather)


def _listen(agent: Agent, fields: Fields) -> None:
    def listen() -> Answer:
        from distdl_jupyter.node import ports

        listener, port = ports.listen(str(fields["address"]))
        agent.keep(listener)
        return {"port": port}

    agent.later(fields, listen)


def _reach(agent: Agent, fields: Fields) -> None:
    def try_all() -> Answer:
        from distdl_jupyter.node import ports

        targets = [(str(address), int(port)) for address, port in fields["targets"]]
        return {"reached": ports.reach(targets, float(fields["seconds"]))}

    agent.later(fields, try_all)


def _texts(fields: Fields, name: str) -> list[str]:
    return [str(text) for text in fields.get(name, ())]


def _ports(agent: Agent, fields: Fields) -> Answer:
    return {"ports": agent.ports.reserve(int(fields["count"]), str(fields["address"]))}


def _sweep(agent: Agent, fields: Fields) -> None:
    agent.later(fields, lambda: {"found": job.sweep(str(fields["job"]), str(fields.get("base", "")))})


# the job -------------------------------------------------------------------------------------------


def _prepare(agent: Agent, fields: Fields) -> Answer:
    name = files.plain(str(fields["job"]))
    if agent.job is not None and agent.job.name != name:
        raise Unanswerable("The agent already has another job.")
    base = str(fields.get("base") or "")
    workdir = files.find(name, str(fields["folder"]), _proof(fields.get("proof")), base)
    try:
        agent.begin(name, workdir, base)
    except OSError:
        if workdir.copied:
            files.remove(workdir.folder)
        raise
    answer = {"shared": not workdir.copied, "folder": str(workdir.folder), "run": str(_job(agent).pipes.folder)}
    if directory := fields.get("working_directory"):
        return {**answer, "working_directory_there": Path(str(directory)).is_dir()}
    return answer


def _proof(proof: Sequence[Any] | None) -> tuple[str, str] | None:
    if proof is None:
        return None
    name, text = proof
    return str(name), str(text)


def _job(agent: JobHost) -> job.Job:
    if agent.job is None:
        raise Unanswerable("The agent has no job. Send the request 'prepare' first.")
    return agent.job


def _look(_agent: Agent, fields: Fields) -> Answer:
    try:
        return {"fingerprint": data_cache.fingerprint(str(fields["path"]))}
    except OSError:
        return {"fingerprint": None}


def _copied(_agent: Agent, fields: Fields) -> Answer:
    return {"path": data_cache.copied(str(fields["digest"]), str(fields.get("base") or ""))}


def _copy(agent: Agent, fields: Fields) -> None:
    begun = data_cache.Copy(str(fields["digest"]), str(fields.get("base") or ""))
    incoming = Incoming(begun.folder, agent.wake)
    agent.expect(int(fields["channel"]), incoming)
    agent.later(fields, lambda: {**begun.finish(incoming.unpack)})


def _stacks(agent: Agent, fields: Fields) -> None:
    folder, ranks = _job(agent).pipes.folder, [int(rank) for rank in fields["ranks"]]

    def ask() -> Answer:
        from distdl_jupyter.node import stacks

        return {"answers": {str(rank): dump.to_json() for rank, dump in stacks.gather(folder, ranks).items()}}

    agent.later(fields, ask)


def _connect(agent: Agent, fields: Fields) -> Answer:
    path = _serving(agent, fields)["socket"]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_SECONDS)
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise Unanswerable(f"Rank {fields['rank']} does not respond.") from error
    agent.join(int(fields["channel"]), connection)
    return {}


def _hold(agent: Agent, fields: Fields) -> Answer:
    agent.channels.hold(int(fields["channel"]), held=bool(fields["held"]))
    return {}


def _slots(agent: Agent, fields: Fields) -> None:
    from distdl_jupyter.node import slots

    def ask() -> Answer:
        if agent.slot is None:
            agent.slot = slots.Slot(str(fields["job"]), str(fields["name"]), number=fields.get("number"))
        gpus, devices, amounts = fields["need"]
        turn = agent.slot.ask(
            slots.Need(
                int(gpus), tuple(map(str, devices)), {str(name): float(value) for name, value in amounts.items()}
            ),
            priority=float(fields["priority"]),
        )
        held = list(agent.slot.gpus) if turn is None else None
        return {"held": held, "turn": turn, "limits": slots.limits()}

    agent.later(fields, ask)


def _put(agent: Agent, fields: Fields) -> None:
    incoming = Incoming(_job(agent).place.folder, agent.wake)
    agent.expect(int(fields["channel"]), incoming)
    agent.later(fields, incoming.unpack)


def _get(agent: Agent, fields: Fields) -> None:
    folder, channel = _job(agent).place.folder, int(fields["channel"])
    agent.later(fields, lambda: send_files(folder, _texts(fields, "paths"), channel, agent.post))


def _answer(agent: Agent, fields: Fields) -> Answer:
    agent.shells.answer(int(fields["shell"]), fields)
    return {}


def _end(agent: Agent, fields: Fields) -> Answer:
    ended = agent.job.kill() if agent.job is not None else 0
    agent.channels.end_all()
    agent.finish(keep=bool(fields.get("keep")))
    return {"ended": ended}


def _start(agent: JobHost, fields: Fields) -> Answer:
    return {"pids": _job(agent).start([children.parse_spec(process) for process in fields["processes"]])}


def _feed(agent: JobHost, fields: Fields) -> Answer | None:
    its = _job(agent)

    def feed() -> Answer:
        its.feed(str(fields["kind"]), str(fields["text"]))
        return {}

    return agent.later(fields, feed)


def _pipes(agent: JobHost, fields: Fields) -> Answer:
    _job(agent).open_pipes(fields["ranks"], fields.get("variables", ()))
    return {}


def _signal(agent: JobHost, fields: Fields) -> Answer:
    return {"sent": _job(agent).signal(str(fields["name"]), str(fields["to"]))}


def _alive(agent: JobHost, _fields: Fields) -> Answer:
    running = agent.job.alive() if agent.job is not None else ()
    return {"alive": len(running), "workers": len(processes.workers(running))}


def _stuck(agent: JobHost, _fields: Fields) -> Answer:
    return {"pids": agent.job.stuck() if agent.job is not None else []}


def _profile(agent: JobHost, fields: Fields) -> Answer:
    ranks = [int(rank) for rank in fields["ranks"]]
    run_dir.ask_profile(_job(agent).pipes.folder, ranks, dict(fields["recording"]))
    return {}


def _serving(agent: JobHost, fields: Fields) -> Answer:
    try:
        return _job(agent).pipes.serving(int(fields["rank"]))
    except FileNotFoundError:
        raise Unanswerable(f"Rank {fields['rank']} is not listening.") from None


def _drain(agent: JobHost, _fields: Fields) -> Answer:
    return {"evidence": _job(agent).drain()}


HANDLERS: dict[str, Handler] = {
    "facts": _facts,
    "listen": _listen,
    "reach": _reach,
    "ports": _ports,
    "sweep": _sweep,
    "prepare": _prepare,
    "look": _look,
    "copied": _copied,
    "copy": _copy,
    "start": _start,
    "feed": _feed,
    "pipes": _pipes,
    "signal": _signal,
    "alive": _alive,
    "stuck": _stuck,
    "profile": _profile,
    "serving": _serving,
    "drain": _drain,
    "stacks": _stacks,
    "connect": _connect,
    "hold": _hold,
    "slots": _slots,
    "put": _put,
    "get": _get,
    "answer": _answer,
    "end": _end,
}
