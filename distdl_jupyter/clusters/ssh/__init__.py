"""SSH clusters: ``ssh`` starts one agent on each host, and the agent starts and ends the ranks."""
