"""The federated-learning engine: batches of independent courses, advanced in lockstep."""

ENGINE_VERSION = 1
"""Raised whenever courses' numbers change; tables record it, with `Model.revision` added."""
