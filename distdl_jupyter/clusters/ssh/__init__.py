"""SSH clusters: ``ssh`` starts one agent on each host, which starts and ends the ranks there."""
