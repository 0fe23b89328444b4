"""Staged data on the disk of one node: a cache shared by all jobs of a user, and folders of links that ranks see.

Below ``base`` (the user's cache folder where it is "") lie ``blobs``, the cache, and ``staged/<job>/<node>/<source>``,
made of links into it. What fills them is ``distdl_jupyter.stager``.
"""
