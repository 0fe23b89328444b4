"""The stager: brings a job's data and packages to the disk of one node: verified, cached, resumable.

``python -m distdl_jupyter.stager`` runs on each node with the Python of the ranks. Objects are read with obstore, which
that Python needs unless all sources are paths. Credentials of Azure Blob are asked for and kept in memory; those of S3
and Google Cloud Storage are the node's own (see ``stores``).

It reads one line of JSON, its order, and writes lines of JSON:

    {"job": id, "node": 0, "nodes": 2, "base": "" or a folder, "limit_bytes": int or null, "workers": int (0: 8),
     "ca": PEM text or "", "sources": [
       {"name": "train", "variable": "DISTDL_DATA_TRAIN", "kind": "blob", "s3", "gs" or "https",
        "address": "https://account.blob.core.windows.net/container", "s3://bucket", "gs://bucket" or "https://host",
        "prefix": "cifar", "settings": {"region", "endpoint"} of the notebook's machine, for S3,
        "items": [[name, size, version, MD5 of the content in base64 or ""], ...]},
       {"name": "labels", "variable": "DISTDL_DATA_LABELS", "kind": "path", "path": "/mnt/labels",
        "fingerprint": what ``paths.fingerprint`` returned elsewhere, or null}],
     "packages": null or {"pip": [requirement, ...], "conda": [spec, ...], "requirements": text of requirements.txt or
        pylock.toml, "modules": [name that must be importable, ...], "variables": {settings of the installers}}}

Names of items are whole, and only what this node is to have. A prefix is a folder's name or one object's: no part of a
word. A version is an ETag, or what ``stores.version`` makes of the time of change. A name with a slash at its end is an
empty folder; an object of no bytes below whose name others lie is taken for one as well. A path is used in place.

    {"type": "renew", "source": "train"}                              (blob) waits for an answer, on standard input:
        {"type": "sas", "source": "train", "sas": "sv=...&sig=..."}         one that reads all items, or
        {"type": "sas", "source": "train", "refused": text, "remedy": text} none is to be had; it ends with that text
    {"type": "progress", "source", "done", "total", "cached" (bytes of which the disk had them), "files", "of"}
    {"type": "note", "source": name or "", "level": "info" or "warning", "text", "code"}
    {"type": "failed", "source": name or "", "text", "remedy"}              and exit code 1
    {"type": "staged", "paths": {variable: folder}, "bytes": fetched, "cached", "seconds",
     "python": that of the packages' environment, "" without}                                and exit code 0

A signature is asked for when something has to be fetched, shortly before the last one ends (``se``), and when the
service refuses it. The order ``{"forget": job, "base": ""}`` takes the job's folders away and is answered by
``{"type": "forgotten", "job"}``; with ``limit_bytes`` the cache is cut down to it as well.

The end of standard input ends the program at once, as does any signal: what is fetched stays, and the next one goes on
from there.
"""
