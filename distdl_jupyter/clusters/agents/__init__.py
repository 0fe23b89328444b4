"""How a job runs on machines that have an agent each: this one, SSH hosts, nodes of Slurm, Ray and Spark.

* ``cluster`` places a job: agents are started, machines looked at (``checkup``), files and data brought
  (``staging``, ``data``), the network chosen on which ranks meet (``network``).
* ``run`` starts the plan and follows it to its end; ``launcher_run`` where a program such as ``mpirun`` starts the
  ranks.
* ``agent`` is what both know of a machine; ``connection`` speaks to an agent in frames over a ``wire``, whose link is a
  process with pipes, files of a folder (``folder_link``), or a connection that comes from there (``tcp_link``).

The agents themselves are ``distdl_jupyter.node``.
"""
