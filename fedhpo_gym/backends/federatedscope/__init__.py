"""FederatedScope behind the same ids: its courses run in an interpreter of its own, by `peer/`."""
