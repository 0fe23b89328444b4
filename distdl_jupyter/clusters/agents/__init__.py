"""Code shared by all clusters that run an agent on each machine."""
