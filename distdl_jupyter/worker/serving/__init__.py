"""A persistent rank: it runs one cell after another in one namespace, as a notebook's kernel does.

A process of the same user that knows the rank's token can connect to its Unix socket and run code in it. Output is
handled like that of any job, so that nothing is lost if the process dies; marks in it delimit the output of each cell.
The rank does not depend on kernels or on the display.
"""
