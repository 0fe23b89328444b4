"""What a rank knows of the frameworks that training code uses.

When the ranks meet, what a framework reports by itself, how a lost peer sounds, what an error means, how a rank leaves.
Nothing here imports a framework, and nothing here can break user code: what fails becomes a note.
"""
