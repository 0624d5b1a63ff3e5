"""The federated-learning engine: batches of independent courses, advanced in lockstep."""

ENGINE_VERSION = 1
"""Raised whenever a course's numbers change; tables record it."""
