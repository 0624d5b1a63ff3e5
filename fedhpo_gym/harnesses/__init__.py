"""Our problems as those of other libraries: one file per library, imported by its full name.

All stand on `problem.Problem`, a trial environment as a function of a configuration and a fidelity.
None is imported with the package. A new one is a file, a row of the import contract and one of
docs/harnesses.md.
"""
