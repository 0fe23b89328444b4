"""A rank that stays: it runs one cell after another in one namespace, as a notebook's kernel does.

Whoever holds the job's token and is the same user may connect to the rank's Unix socket and ask it to run code. What
code prints goes the way of any job's output, so that nothing is lost when the process dies; marks in it say which
lines are a cell's. The rank does not know who asks or what is shown.
"""
