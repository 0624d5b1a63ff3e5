"""The federated-learning engine: batches of independent courses, advanced side by side."""

ENGINE_VERSION = 1
"""Raised whenever courses' numbers change; tables record it, with `Model.revision` added."""
