"""Figures, measured side by side in one run and given as ratios, so that machines can be compared."""
