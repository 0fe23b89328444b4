"""Azure Machine Learning clusters: jobs on compute clusters, which this package can create and delete."""
