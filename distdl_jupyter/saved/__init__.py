"""What stays in a notebook without a kernel: a job, a cell's ranks, as one page and one text each.

``templates`` holds the pages (jinja2); ``job`` and ``ranks`` say what stands in them. No script, no link,
no style sheet: every style is inline, and all that comes from a job is escaped.
"""
