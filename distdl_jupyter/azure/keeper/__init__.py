"""The keeper: one small background process per user and machine that holds an interactive sign-in, like ssh-agent.

``python -m distdl_jupyter.azure.keeper`` holds one credential of azure-identity in memory and gives tokens to the
kernel, the Jupyter server, the supervisors of jobs and the command line of the same user. It outlives them all: one
sign-in serves a job that goes on after the notebook is closed. It is started by the first sign-in and ends at sign-out,
after ``IDLE_SECONDS`` with nobody signed in, and after ``UNUSED_SECONDS`` in which nobody asked.

It listens on a Unix socket (mode 0600) in a folder of its owner (mode 0700) and asks the kernel which user is at the
other end: every other one, root included, is sent away. A connection carries lines of JSON, a request and its answer:

    {"do": "status"}                                   -> a status
    {"do": "sign_in", "kind": "device_code", "settings": {...AzureSettings}}
                                                       -> a status: waiting (with the code), or failed
    {"do": "resume", "kind": ..., "settings": {...}}   -> a status: signed in by what was kept on disk, or signed out
    {"do": "cancel"}                                   -> a status; who was signed in before stays so
    {"do": "sign_out"}                                 -> a status; the process ends
    {"do": "token", "scopes": [...], "options": {...}} -> {"token": "...", "expires_on": 1763.0}
    whatever fails                                     -> {"error": {"message": "...", "hint": "..."}}

A status is ``{"state", "kind", "account", "prompt", "problem", "note", "settings"}`` (``azure.status``) and holds no
token. Nothing is written to disk but azure-identity's own cache, when the user chose ``token_cache``
(``azure.remembered``).
"""
