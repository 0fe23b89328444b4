"""Code shared by all clusters that run an agent on each machine.

* ``package`` starts an agent, ``connection`` sends it requests over a ``wire.Link`` and connects to ranks;
* ``checkup`` queries the machines, ``checks`` evaluates the answers and selects the network for the ranks;
* ``staging`` and ``data`` copy a job's files and data to the machines and its results back;
* ``run`` starts or resumes the job and follows it until it ends.
"""
