"""Spark clusters. Only ``driver`` imports pyspark."""
