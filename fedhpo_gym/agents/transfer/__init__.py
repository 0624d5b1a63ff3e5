"""Optimizers that learn from tasks tuned before, and those that they must beat."""
