"""Machines with an agent on each: what all such clusters share, however an agent is started there.

* ``package`` starts an agent, ``wire`` and ``connection`` speak to it over any link, ``rank_relay`` to ranks;
* ``checkup`` asks machines, ``checks`` judges their answers, ``network`` chooses the network on which ranks meet;
* ``staging`` and ``data`` bring a job's files and data there and its results back;
* ``launch`` starts or resumes the job, and ``run`` follows it to its end.
"""
