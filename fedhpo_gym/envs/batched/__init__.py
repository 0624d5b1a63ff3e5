"""What vector environments of every decision process share."""
