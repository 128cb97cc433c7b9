"""What ``make demo-check`` does, as a person would: each module a part, each step a row of a table."""
