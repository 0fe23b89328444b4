"""The launch form without a page: its fields, choices, checks and submission.

``state.compute_form`` computes the whole form from the chosen values, for the notebook widget and the Jupyter server;
``schema`` defines the messages between a page and the form.
"""
