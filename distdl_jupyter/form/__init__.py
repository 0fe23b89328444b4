"""The launch form without a page: what it asks, what it offers, what it checks and what it submits.

``model.LaunchModel`` holds the state as traits; the widget of a notebook and the Jupyter server show the same model.
"""
