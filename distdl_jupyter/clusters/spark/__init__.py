"""Spark clusters: runs an agent in each task of one barrier stage, and any backend on these agents.

* A process of the job, or the kernel of the notebook with the session, runs the stage with one task for each node
  (``driver``). Until Spark's scheduler has free slots, the job is queued and shows the reason. The process and its
  stage end with the connection to the supervisor, so nothing outlives the supervisor.
* Each task connects back to the supervisor over TLS 1.3 and sends the job's secret (``agents.tcp_link``,
  ``node.connect_back``). It starts the same agent as ``ssh``, as a child with pipes, and forwards its bytes.
* When the connection or the task ends, the agent's input ends, and the agent ends all processes it has started.

Only ``driver`` imports pyspark. The code of a task is pickled by value, so executors do not need this package.
"""
