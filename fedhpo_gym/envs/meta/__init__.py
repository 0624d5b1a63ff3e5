"""Environments of FedHPO-B: every episode is one of many tasks of a search space."""
