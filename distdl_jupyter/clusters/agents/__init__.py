"""Machines with an agent on each: what all such clusters share, however an agent is started there.

* ``package`` starts an agent, ``connection`` speaks to it over any link (``wire``), ``rank_relay`` to ranks;
* ``checkup`` asks machines, ``checks`` judges their answers and chooses the network on which ranks meet;
* ``staging`` and ``data`` bring a job's files and data there and its results back;
* ``run`` starts or resumes the job, and follows it to its end.
"""
