"""Faults that are injected for real, each with the promise that must hold; ``frame`` says how they are marked."""
