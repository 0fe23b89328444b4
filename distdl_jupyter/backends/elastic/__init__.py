"""Horovod elastic: the program that starts a job's processes and lets those that live meet again and again.

It stands where ``horovodrun`` with a host discovery script would: the same protocol towards ``hvd.elastic.run``, other
rules. ``horovodrun`` shuts out a host when one process on it fails; here a process that failed is replaced on its host,
and the processes that have the state get the lowest ranks, because Horovod hands the state on from rank 0.
"""
