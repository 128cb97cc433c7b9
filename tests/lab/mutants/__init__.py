"""A fixed sample of small changes of the package, and the tests that notice them."""
