"""Mutants: small faults that are put into a copy of the code, one at a time, to see that the tests fail."""
