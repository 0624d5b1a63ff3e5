"""FederatedScope behind the same ids: its courses, in an interpreter of its own.

`backend.py` answers queries, `courses.py` keeps courses running for round environments. Both ask a
`process.Peer`, which runs the program in `peer/`; `sharing.py` lends it to all environments here.
"""
