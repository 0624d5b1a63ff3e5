"""Arms: finite sets of configurations, and what clients report of those they tried."""
