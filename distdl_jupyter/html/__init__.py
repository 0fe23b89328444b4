"""Static HTML for saved notebooks: a job, and the ranks of a cell.

``templates`` holds the pages (jinja2). They have no scripts, links or style sheets: every style is inline, and all text
of a job is escaped.
"""
