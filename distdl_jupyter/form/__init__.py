"""The launch form without a page: what it asks, what it offers, what it checks and what it submits.

``state.state`` works the whole form out of what was chosen, for the widget of a notebook and for the Jupyter server
alike; ``schema`` is what a page and the form tell each other.
"""
