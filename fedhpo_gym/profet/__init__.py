"""Profet (Klein et al., 2019): families of HPO tasks, and tasks that a model of one generates."""

from fedhpo_gym.profet.families import Family, forrester
from fedhpo_gym.profet.model import ProfetModel, ProfetTask

__all__ = ["Family", "ProfetModel", "ProfetTask", "forrester"]
