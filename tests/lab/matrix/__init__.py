"""The test suite on every supported version, database and Redis."""
