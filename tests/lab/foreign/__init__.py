"""Suites that nobody here wrote, each run with us in the way: what does not pass then must end so without us too."""
