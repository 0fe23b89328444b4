"""Starts an agent on a host by ssh alone."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from distdl_jupyter.clusters import package
from distdl_jupyter.clusters.agents import bootstrap
from distdl_jupyter.clusters.agents.connection import DIRECTORY, Connection
from distdl_jupyter.clusters.agents.wire import Wire
from distdl_jupyter.clusters.ssh import command
from distdl_jupyter.clusters.ssh.process import SshProcess

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Host
    from distdl_jupyter.clusters.ssh.options import SshOptions


def reach(host: Host, options: SshOptions, python: str = "") -> Connection:
    """Start an agent on a host and return the connection. Raises Unreachable.

    ``python`` is the job's own path of Python, taken where the options name none.
    """
    path = options.python or python or sys.executable
    base = options.directory or DIRECTORY
    first = bootstrap.first_input(path, base, package.built(), agent_arguments(options))
    argv = command.argv(host, os.path.expanduser(options.ssh_config) if options.ssh_config else "")  # noqa: PTH111
    link = SshProcess(host.name, argv)
    connection = Connection(host, path, lambda listener: Wire(host.name, link, first, listener))
    connection.shell = command.in_words(host, options.ssh_config)
    connection.start()
    connection.await_greeting(lambda said, code: command.explain(host, options.ssh_config, path, said, code))
    return connection


def agent_arguments(options: SshOptions) -> list[str]:
    """Return the command line of the agent: nothing in it is about the job."""
    return [str(options.patience_seconds)]
