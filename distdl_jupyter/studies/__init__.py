"""Studies of several jobs: scaling, hyperparameter sweeps, and the check of correctness."""
