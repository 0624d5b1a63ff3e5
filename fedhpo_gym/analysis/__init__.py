"""Run records: reading, summarising, and a report to look at."""

from fedhpo_gym.analysis.grouping import group
from fedhpo_gym.analysis.problems import AgentResult, Curve, Problem, Run, Summary
from fedhpo_gym.analysis.report import Report, build_report, make_report
from fedhpo_gym.records.files import read_folder, read_record, record_path, set_aside, write_record
from fedhpo_gym.records.record import Header, RunRecord, StepRecord

__all__ = [
    "AgentResult",
    "Curve",
    "Header",
    "Problem",
    "Report",
    "Run",
    "RunRecord",
    "StepRecord",
    "Summary",
    "build_report",
    "group",
    "make_report",
    "read_folder",
    "read_record",
    "record_path",
    "set_aside",
    "write_record",
]
