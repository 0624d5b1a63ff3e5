"""Stored numbers: tables, samples, surrogates fitted on them, and what is known of all three."""
