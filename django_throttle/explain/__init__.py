"""What would be decided for a caller now, and why calls were refused."""
