"""Compiled training of small models: the same bits in any company and on every processor."""
