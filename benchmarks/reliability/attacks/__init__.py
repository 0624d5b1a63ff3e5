"""What `reliability.py` tries on the package, one kind of attack per module."""
