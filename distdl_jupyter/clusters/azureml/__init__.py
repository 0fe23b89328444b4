"""Azure Machine Learning as a cluster: jobs on its compute clusters, which are made and unmade from here."""
