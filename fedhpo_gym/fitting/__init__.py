"""Fitting surrogates: it may use scikit-learn, which answering from a surrogate does not need."""
