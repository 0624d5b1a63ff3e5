"""Planning, running, comparing and replaying studies: agents on environments, a record per run."""

from fedhpo_gym.studies.comparison import Compared, Means, compare
from fedhpo_gym.studies.suites import SUITES, suite

__all__ = ["SUITES", "Compared", "Means", "compare", "suite"]
