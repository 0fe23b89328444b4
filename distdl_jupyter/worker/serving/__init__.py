"""A persistent rank: it runs one cell after another in one namespace, as a notebook's kernel does.

A process of the same user that knows the rank's token may connect to its Unix socket and let it run code. What code
prints goes the way of any job's output, so that nothing is lost when the process dies; marks in it show which lines
belong to a cell. The rank knows nothing of kernels or of what is shown.
"""
