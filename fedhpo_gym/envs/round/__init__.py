"""The round environments: a step is some communication rounds of one course."""
