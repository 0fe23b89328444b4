"""Checks the Python environment and builds Horovod, independently of jobs and backends."""
