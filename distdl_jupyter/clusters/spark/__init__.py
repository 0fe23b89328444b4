"""The executors of a Spark cluster: an agent in each task of one barrier stage, with any backend on them.

* A process of the job, or the kernel of the notebook with the session, runs the stage with one task for each node
  (``driver``). Until Spark's scheduler has the slots, the job is queued with the reason. The process ends when its
  connection to the supervisor does, and with it the stage, so nothing outlives the supervisor.
* Each task connects back to the supervisor over TLS 1.3 and sends the job's secret (``agents.tcp_link``,
  ``node.connect_back``). It starts the same agent that ``ssh`` starts, as a child with pipes, and carries its bytes.
* When the connection or the task ends, so does the agent's input, and an agent ends everything it has started.

Only ``driver`` imports pyspark. The code of a task is pickled by value, so executors need not have this package.
"""
