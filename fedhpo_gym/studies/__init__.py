"""Planning, running and replaying studies: agents on environments, one record per run."""
