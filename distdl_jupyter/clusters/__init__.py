"""Where ranks run: each cluster places, starts, watches and stops them."""
