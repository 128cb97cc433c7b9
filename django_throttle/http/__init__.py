"""What the doors of HTTP have in common."""
