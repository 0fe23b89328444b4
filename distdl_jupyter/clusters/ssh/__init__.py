"""Other machines over OpenSSH: one agent on each, started by ``ssh`` alone, which starts and ends the ranks there."""
