"""Laboratories: long runs and measurements outside the test suite, each with a make target."""
