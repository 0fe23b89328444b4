"""Data on its way to one node: from Azure Blob to this machine's disk, verified, cached, resumable.

A program of the standard library alone, ``python -m distdl_jupyter.host.staging``. It knows no account and no
credential: it asks for a shared access signature whenever it needs one, keeps it in memory and tells it to nobody.

It reads one line of JSON, its order, and writes lines of JSON:

    {"job": id, "node": 0, "nodes": 2, "base": "" or a folder, "limit_bytes": int or null, "workers": int (0: 8),
     "ca": PEM text or "", "sources": [
       {"name": "train", "variable": "DISTDL_DATA_TRAIN", "kind": "blob",
        "address": "https://account.blob.core.windows.net/container", "prefix": "cifar",
        "items": [[name, size, etag, MD5 of the content in base64 or ""], ...]},
       {"name": "labels", "variable": "DISTDL_DATA_LABELS", "kind": "path", "path": "/mnt/labels",
        "fingerprint": what ``paths.fingerprint`` said elsewhere, or null}]}

Names of items are whole, and only what this node is to have. A prefix is a folder's name or one blob's: no part of a
word. A name with a slash at its end is an empty folder (the marker that some tools write; a blob with ``hdi_isfolder``
is to be told so); a blob of no bytes below whose name others lie is taken for one as well. A path is used in place.

    {"type": "renew", "source": "train"}                                    waits for an answer, on standard input:
        {"type": "sas", "source": "train", "sas": "sv=...&sig=..."}         one that reads all items, or
        {"type": "sas", "source": "train", "each": {name: "sv=...", ...}}   one for each of them
        {"type": "sas", "source": "train", "refused": text, "remedy": text} none is to be had; it ends with that text
    {"type": "progress", "source", "done", "total", "cached" (bytes of which the disk had them), "files", "of"}
    {"type": "note", "source": name or "", "level": "info" or "warning", "text", "code"}
    {"type": "failed", "source": name or "", "text", "remedy"}              and exit code 1
    {"type": "staged", "paths": {variable: folder}, "bytes": fetched, "cached", "seconds"}      and exit code 0

A signature is asked for when something has to be fetched, shortly before the last one ends (``se``), and when the
service refuses it. The order ``{"forget": job, "base": ""}`` takes the job's folders away and is answered by
``{"type": "forgotten", "job"}``; with ``limit_bytes`` the cache is cut down to it as well.

The end of standard input ends the program at once, as does any signal: what is fetched stays, and the next one goes on
from there. Below ``base`` (the user's cache folder where it is "") lie ``blobs``, the cache, and the folders that ranks
see, ``staged/<job>/<node>/<source>``, made of links into it.
"""
