"""Suites that nobody here wrote, each run as it is and with us in the way: not one result may change."""
