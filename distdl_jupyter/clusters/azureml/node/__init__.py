"""What runs on the nodes of an Azure ML job, where the platform starts each rank itself and no agent can be reached.

Standard library only, as ``distdl_jupyter.node`` and the worker: it travels with the job's code to images without this
package.
"""
