"""Horovod's own calls, where Horovod itself no longer does what they say."""
