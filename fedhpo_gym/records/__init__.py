"""Run records: what one run returned, on disk, enough to judge it and to replay it."""
