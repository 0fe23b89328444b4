"""The executors of a Spark cluster: an agent in each task of one barrier stage, with any backend on them.

* A process of the job's own (``driver``) holds the Spark session and runs the stage, one task a node. Spark's scheduler
  says when the slots are free; until then the job is queued with the reason. The process ends when its standard input
  ends, and with it the stage: nothing outlives the supervisor.
* Each task connects back to the supervisor over TLS 1.3, with a certificate made for the job, and says the job's
  secret (``agents.tcp_link``, ``node.connect_back``). It starts the same agent that ``ssh`` starts, as a child with
  pipes, and carries its bytes.
* When the connection or the task ends, so does the agent's input, and an agent ends everything that it started.

pyspark is imported in ``driver`` only; neither a supervisor nor a Jupyter server has a session. The task's code is
pickled by value, so executors need this package as little as hosts of ``ssh`` do.
"""
