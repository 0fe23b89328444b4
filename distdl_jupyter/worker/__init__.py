"""What runs inside a rank: it loads the payload, runs it, and reports metrics, progress, results and errors.

Standard library only and self-contained: nothing here may import another part of the package, so that this folder can
be copied alone to a host. Nothing here knows who started the rank or who reads its reports.
"""
