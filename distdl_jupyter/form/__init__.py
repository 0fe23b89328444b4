"""The launch form without a page: its fields, choices, checks and submission.

``state.state`` computes the whole form from the chosen values, both for the notebook widget and for the Jupyter server;
``schema`` defines the messages between a page and the form.
"""
