"""Integrations with other packages. The rest of django_throttle imports none of them."""
