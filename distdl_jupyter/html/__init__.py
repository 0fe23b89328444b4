"""HTML that a notebook keeps without a kernel: a job, a cell's ranks.

``templates`` holds the pages (jinja2). No script, no link, no style sheet: every style is inline, and all text of a job
is escaped.
"""
