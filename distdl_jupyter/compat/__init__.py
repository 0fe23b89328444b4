"""Jobs and calls of other tools: Batch AI's job files, and the calls of Databricks, Spark, Horovod by one import."""
