"""Planning, running, comparing and replaying studies: agents on environments, a record per run."""

from fedhpo_gym.studies.comparison import Execution, StudyResult, compare
from fedhpo_gym.studies.suites import SUITES, suite

__all__ = ["SUITES", "Execution", "StudyResult", "compare", "suite"]
