"""What runs on another machine beside the ranks: it starts them, passes on what they say, and ends them.

Standard library only and self-contained, as the worker: both are copied together to machines on which this package is
not installed. Nothing here knows of events, views or kinds of clusters.
"""
