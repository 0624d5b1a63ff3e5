"""Run records: reading, summarising, and a report to look at."""

from fedhpo_gym.analysis.aggregate import AgentResult, Curve, Problem, Summary, group
from fedhpo_gym.analysis.files import (
    read_folder,
    read_record,
    record_path,
    set_aside,
    write_record,
)
from fedhpo_gym.analysis.records import Header, RunRecord, StepRecord
from fedhpo_gym.analysis.report import make_report

__all__ = [
    "AgentResult",
    "Curve",
    "Header",
    "Problem",
    "RunRecord",
    "StepRecord",
    "Summary",
    "group",
    "make_report",
    "read_folder",
    "read_record",
    "record_path",
    "set_aside",
    "write_record",
]
