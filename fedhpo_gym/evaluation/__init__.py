"""Evaluations as frozen records, their noise, and statistics of many of them."""
