"""Connections to programs of this machine that act as agents."""

import os
import subprocess
import sys

from distdl_jupyter.clusters import ssh
from distdl_jupyter.clusters.agents.agent import Host
from distdl_jupyter.clusters.agents.connection import Connection
from distdl_jupyter.clusters.ssh import SshLink

GPU1 = Host("gpu1", "me@gpu1")


def python_link(name, *arguments):
    """Run Python with these arguments as the agent of a host; return the link and its connection, not yet started."""
    link = SshLink(name, [sys.executable, *arguments], os.environ)
    return link, Connection(Host(name, ""), link)


def log_in(content, shell="sh", **options):
    """Run in a shell of this machine what ssh runs on a host, with this input; return the completed process."""
    return subprocess.run(
        [shell, "-c", ssh.build_agent_command(GPU1)[-1]], input=content, capture_output=True, timeout=60, **options
    )
