"""Explanations: the predicted decision for a caller, and the recorded refusals."""
