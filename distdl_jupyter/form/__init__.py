"""The launch form, independent of its display: its fields, choices, checks and the equivalent cell.

``events.compute_form`` computes the whole form from the entered values, for the notebook widget and the Jupyter server.
``schema`` defines the messages between a page and the form.
"""
