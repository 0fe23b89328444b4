"""Checks of the Python environment, and the build of Horovod. It does not depend on jobs or backends."""
