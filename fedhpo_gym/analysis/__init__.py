"""Run records: reading, summarising, and a report to look at."""

from fedhpo_gym.analysis.groups import group
from fedhpo_gym.analysis.report import Report, build_report
from fedhpo_gym.records.files import read_folder, read_record, set_aside, write_record
from fedhpo_gym.records.record import Header, RunRecord, StepRecord

__all__ = [
    "Header",
    "Report",
    "RunRecord",
    "StepRecord",
    "build_report",
    "group",
    "read_folder",
    "read_record",
    "set_aside",
    "write_record",
]
