"""Code shared by all clusters that run an agent on each machine.

* ``connection`` sends requests to an agent over a ``wire.Link`` and connects to ranks;
* ``checkup`` queries the machines, evaluates the answers and selects the network for the ranks;
* ``staging`` copies a job's files to the machines and its results back;
* ``run`` starts or resumes the job and follows it until it ends.
"""
