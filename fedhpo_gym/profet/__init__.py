"""Profet (Klein et al., 2019): families of HPO tasks, and models that generate tasks."""

from fedhpo_gym.profet.model import Family, ProfetModel, ProfetTask, forrester

__all__ = ["Family", "ProfetModel", "ProfetTask", "forrester"]
