"""Federated hyperparameter optimisation as reinforcement-learning environments.

Importing the package registers its ids with Gymnasium; `gym.make("fedhpo_gym:<id>")` imports it.
"""

from fedhpo_gym.registry import register_all

__version__ = "0.1.0"

register_all()

__all__ = ["__version__"]
