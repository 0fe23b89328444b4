"""Jobs as OpenTelemetry spans and metrics, for those who ask for it. Off by default; it knows no secret and no code.

When a job has ended its supervisor calls ``start``: a process of its own reads the job's events once, sends them with
the exporters that the environment describes, and ends, after 20 seconds at the latest. The job has ended by then, so
nothing can delay it or fail it. A job that nobody was left to end ("lost") is not sent.

What is sent so: the job's id, kind of cluster, backend, counts, state, exit, and how long each part took. Never code,
arguments, paths, names of people, machines, jobs, data or metrics, log lines or messages of errors.

A webhook gets a sentence when something happens (``webhook``). Experiment trackers get one run for all ranks while it
happens (``tracking``): parameters, metrics, resources, tags, outputs.
"""

from __future__ import annotations

from distdl_jupyter.monitoring.settings import MonitoringSettings, change, read
from distdl_jupyter.monitoring.start import TrackerProcesses, bring_up_to_date, notify, start

__all__ = ["MonitoringSettings", "TrackerProcesses", "bring_up_to_date", "change", "notify", "read", "start"]
