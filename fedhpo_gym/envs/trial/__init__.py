"""The trial environments: a step is one function evaluation f(configuration, fidelity)."""
