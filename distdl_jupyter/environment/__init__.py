"""Checks the Python environment and builds Horovod. Independent of jobs and backends."""
