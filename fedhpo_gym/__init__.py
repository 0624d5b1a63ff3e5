"""Federated hyperparameter optimization as reinforcement-learning environments."""
