"""What an evaluation says: frozen records, and the statistics of many."""
