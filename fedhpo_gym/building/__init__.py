"""Computing tables and samples, in units that survive a crash, and fitting surrogates."""
