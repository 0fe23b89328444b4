"""What runs on the nodes of an Azure ML job, where the platform starts each rank itself and no agent can be reached.

Standard library only, as ``host`` and the worker: it travels with the job's code to images without this package.
"""
