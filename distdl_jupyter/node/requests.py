"""The requests of a supervisor to its agent, and the responses.

Every request gets exactly one response: with fields, or with ``error``, one sentence. Slow requests are handled in a
thread. The messages:

======== ============================================== ====================================================
type     fields                                         reply
======== ============================================== ====================================================
facts    modules, programs, packages (all optional)     the result of ``facts.gather``
listen   address                                        port
reach    targets, seconds                               reached
prepare  job, folder, proof: [name, text] or null,      shared, folder, run, and working_directory_there
         base, working_directory (optional)             if requested
put      channel; then a tar as data of it, b"" ends it files, bytes (when all is written)
get      channel, paths                                 a tar as data, b"" ends it; then files, bytes, skipped
ports    count, address                                 ports
look     path                                           fingerprint, null if it cannot be read
copied   digest, base                                   path of a folder with this content, "" without one
copy     channel, digest, base; then a tar as data,     path, files, bytes (when all is written)
         b"" ends it
start    processes: [{kind, process, argv, environment, pids: {process: pid}; data of ``out`` and ``err`` and a
         directory, out, err, open_input, python}]      message ``exit`` {kind, process, code, signal, evidence}
feed     kind, text                                     (nothing) when written to its standard input
pipes    ranks: [{rank, out, err}], variables           (nothing) data of ``out`` and ``err``
signal   name: INT, TERM, KILL; to: ranks, all          sent
alive                                                   alive, and how many of them are workers
stuck                                                   pids that no signal reaches
stacks   ranks                                          answers: {rank: ``stacks.StackDump`` as data}
profile  ranks, recording                               (nothing) ranks read the request (``worker.hooks.profile``)
serving  rank                                           where a persistent rank listens: socket, token
connect  rank, channel                                  (nothing) the channel is relayed to and from that rank
hold     channel, held                                  (nothing) the channel is not read while it is held; a
                                                        message ``hold`` requests the same of the supervisor
drain                                                   evidence of an out-of-memory kill, "" for none,
                                                        after all output written so far
answer   shell, then any of out, err (texts), code      (nothing)
slots    job, name, need: [gpus, devices, amounts],     held: its devices, null while it waits; then
         priority, number                               turn (``slots.Turn`` as data), limits
sweep    job, base                                      found
end      keep                                           ended; the agent exits
======== ============================================== ====================================================

``open_input`` is for services: their input ends with the job, and ``alive`` and ``signal`` exclude them. ``beat``
is not a request. A message without a ``request`` number gets no response.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.node import data_cache, files, job, ports, processes, run_dir
from distdl_jupyter.node.files import Incoming, Refused, send_files

if TYPE_CHECKING:
    from distdl_jupyter.node.agent import Agent

Fields = Mapping[str, Any]
Answer = dict[str, Any]
#: Timeout in seconds for connecting to a rank's socket, which blocks only under very many connections.
_CONNECT_SECONDS = 1.0
#: Returns a response, or None if it is sent later.
Handler = Callable[[Any, Fields], Answer | None]


class RequestFailed(Exception):
    """A request failed; the message is sent as the error."""


def answer(agent: Agent, fields: Fields) -> Answer | None:
    """Handle a request and return the response, also for an error; None if it is sent later."""
    handler = HANDLERS.get(str(fields["type"]))
    if handler is None:
        return {"error": f"Unknown request {fields['type']!r}."}
    try:
        return handler(agent, fields)
    except Exception as error:  # noqa: BLE001  no request may end the agent
        return failure(str(fields["type"]), error)


def failure(type_: str, error: Exception) -> Answer:
    """Return an error response of one sentence."""
    if isinstance(error, (RequestFailed, job.NotStarted, Refused)):
        return {"error": str(error)}
    if isinstance(error, OSError) and error.strerror is not None:
        return {"error": f"{error.strerror}: {error.filename}." if error.filename else f"{error.strerror}."}
    if isinstance(error, OSError):
        return {"error": str(error)}
    return {"error": f"The request {type_!r} is not valid: {type(error).__name__}: {str(error).removesuffix('.')}."}


def _texts(fields: Fields, name: str) -> list[str]:
    return [str(text) for text in fields.get(name, ())]


def _job(agent: Agent) -> job.Job:
    if agent.job is None:
        raise RequestFailed("The agent has no job. Send the request 'prepare' first.")
    return agent.job


# before a job --------------------------------------------------------------------------------------


def _on_facts(agent: Agent, fields: Fields) -> Answer | None:
    from distdl_jupyter.node import facts

    names = [_texts(fields, name) for name in ("modules", "programs", "packages")]
    return agent.later(fields, lambda: facts.gather(*names))


def _on_listen(agent: Agent, fields: Fields) -> Answer | None:
    return agent.later(fields, lambda: {"port": ports.listen(str(fields["address"]))[1]})


def _on_reach(agent: Agent, fields: Fields) -> Answer | None:
    targets = [(str(address), int(port)) for address, port in fields["targets"]]
    return agent.later(fields, lambda: {"reached": ports.reach(targets, float(fields["seconds"]))})


def _on_ports(agent: Agent, fields: Fields) -> Answer | None:
    return {"ports": agent.ports.reserve(int(fields["count"]), str(fields["address"]))}


def _on_sweep(agent: Agent, fields: Fields) -> Answer | None:
    return agent.later(fields, lambda: {"found": job.sweep(str(fields["job"]), str(fields.get("base", "")))})


# the job -------------------------------------------------------------------------------------------


def _on_prepare(agent: Agent, fields: Fields) -> Answer | None:
    name = files.plain(str(fields["job"]))
    if agent.job is not None and agent.job.name != name:
        raise RequestFailed("The agent already has another job.")
    base, proof = str(fields.get("base") or ""), fields.get("proof")
    workdir = files.find(name, str(fields["folder"]), (str(proof[0]), str(proof[1])) if proof else None, base)
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


def _on_look(_agent: Agent, fields: Fields) -> Answer | None:
    try:
        return {"fingerprint": data_cache.fingerprint(str(fields["path"]))}
    except OSError:
        return {"fingerprint": None}


def _on_copied(_agent: Agent, fields: Fields) -> Answer | None:
    return {"path": data_cache.copied(str(fields["digest"]), str(fields.get("base") or ""))}


def _on_copy(agent: Agent, fields: Fields) -> Answer | None:
    copy = data_cache.Copy(str(fields["digest"]), str(fields.get("base") or ""))
    incoming = Incoming(copy.folder, agent.wake)
    agent.expect(int(fields["channel"]), incoming)
    return agent.later(fields, lambda: copy.finish(incoming.unpack))


def _on_put(agent: Agent, fields: Fields) -> Answer | None:
    incoming = Incoming(_job(agent).workdir.folder, agent.wake)
    agent.expect(int(fields["channel"]), incoming)
    return agent.later(fields, incoming.unpack)


def _on_get(agent: Agent, fields: Fields) -> Answer | None:
    folder, channel = _job(agent).workdir.folder, int(fields["channel"])
    return agent.later(fields, lambda: send_files(folder, _texts(fields, "paths"), channel, agent.post))


def _on_slots(agent: Agent, fields: Fields) -> Answer | None:
    from distdl_jupyter.node import slots

    def ask() -> Answer:
        if agent.slot is None:
            agent.slot = slots.QueueSlot(str(fields["job"]), str(fields["name"]), number=fields.get("number"))
        gpus, devices, amounts = fields["need"]
        need = slots.Need(int(gpus), tuple(map(str, devices)), {str(name): float(amounts[name]) for name in amounts})
        turn = agent.slot.ask(need, priority=float(fields["priority"]))
        held = list(agent.slot.gpus) if turn is None else None
        return {"held": held, "turn": turn, "limits": slots.limits()}

    return agent.later(fields, ask)


# processes of the job ------------------------------------------------------------------------------


def _on_start(agent: Agent, fields: Fields) -> Answer | None:
    return {"pids": _job(agent).start(fields["processes"])}


def _on_feed(agent: Agent, fields: Fields) -> Answer | None:
    its = _job(agent)

    def feed() -> Answer:
        its.feed(str(fields["kind"]), str(fields["text"]))
        return {}

    return agent.later(fields, feed)


def _on_pipes(agent: Agent, fields: Fields) -> Answer | None:
    _job(agent).open_pipes(fields["ranks"], fields.get("variables", ()))
    return {}


def _on_signal(agent: Agent, fields: Fields) -> Answer | None:
    return {"sent": _job(agent).signal(str(fields["name"]), str(fields["to"]))}


def _on_alive(agent: Agent, _fields: Fields) -> Answer | None:
    running = agent.job.alive() if agent.job is not None else ()
    return {"alive": len(running), "workers": len(processes.workers(running))}


def _on_stuck(agent: Agent, _fields: Fields) -> Answer | None:
    return {"pids": agent.job.stuck() if agent.job is not None else []}


def _on_stacks(agent: Agent, fields: Fields) -> Answer | None:
    from distdl_jupyter.node import stacks

    folder, ranks = _job(agent).pipes.folder, [int(rank) for rank in fields["ranks"]]

    def ask() -> Answer:
        return {"answers": {str(rank): asdict(dump) for rank, dump in stacks.gather(folder, ranks).items()}}

    return agent.later(fields, ask)


def _on_profile(agent: Agent, fields: Fields) -> Answer | None:
    ranks = [int(rank) for rank in fields["ranks"]]
    run_dir.ask_profile(_job(agent).pipes.folder, ranks, dict(fields["recording"]))
    return {}


def _on_serving(agent: Agent, fields: Fields) -> Answer:
    try:
        return _job(agent).pipes.serving(int(fields["rank"]))
    except FileNotFoundError:
        raise RequestFailed(f"Rank {fields['rank']} is not listening.") from None


def _on_connect(agent: Agent, fields: Fields) -> Answer | None:
    path = _on_serving(agent, fields)["socket"]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_SECONDS)
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise RequestFailed(f"Rank {fields['rank']} does not respond.") from error
    agent.join(int(fields["channel"]), connection)
    return {}


def _on_hold(agent: Agent, fields: Fields) -> Answer | None:
    agent.channels.hold(int(fields["channel"]), held=bool(fields["held"]))
    return {}


def _on_drain(agent: Agent, _fields: Fields) -> Answer | None:
    return {"evidence": _job(agent).drain()}


def _on_answer(agent: Agent, fields: Fields) -> Answer | None:
    agent.shells.answer(int(fields["shell"]), fields)
    return {}


def _on_end(agent: Agent, fields: Fields) -> Answer | None:
    ended = agent.job.kill() if agent.job is not None else 0
    agent.channels.end_all()
    agent.finish(keep=bool(fields.get("keep")))
    return {"ended": ended}


#: Handlers by request type. The supervisor also uses those for a started job in its own process.
HANDLERS: dict[str, Handler] = {name[4:]: value for name, value in list(globals().items()) if name.startswith("_on_")}
