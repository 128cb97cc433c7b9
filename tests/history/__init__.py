"""Tests of the history of edits."""
