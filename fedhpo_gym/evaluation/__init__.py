"""What an evaluation says: frozen records, nothing aggregated."""
