"""One module per scheduler, and what they share."""
