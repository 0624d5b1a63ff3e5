"""The program that runs FederatedScope's courses, in the interpreter that has FederatedScope.

Nothing of it is imported here. It is started by `__main__.py` as a file, in another interpreter
(Python 3.9 or newer) that has FederatedScope and torch, and not this package. It runs
FederatedScope as it is: its runner, server, clients, messages, evaluation and log.
"""
