"""Elastic Horovod jobs: the program that starts a job's processes and assigns ranks to those that are alive.

It stands where ``horovodrun`` with a host discovery script would, with the same protocol towards ``hvd.elastic.run``.
Horovod's own ``ElasticDriver`` (release 0.28.1) cannot keep what is promised here. It excludes the host of a failed
process, survivors on it get rank -1, and the job ends when no other host is left (``registration.py``,
``WorkerStateRegistry._on_workers_recorded``; ``driver.py``, ``has_rank_assignment``): on one machine the first failure
is the last. Without that exclusion it starts nothing in the slot of a failed process while the host stays, and the
survivors wait for it (``driver.py``, ``_update_host_assignments``). It ranks by host and not by who has the training's
state, which Horovod broadcasts from rank 0; it counts each change of hosts as a reset; it waits without a limit until
every process has asked or ended; and it unpickles what any client sends (``rendezvous.py``, ``_put_value``).

Here a process that failed is replaced in its slot, and the processes that have the state get the lowest ranks.
"""
