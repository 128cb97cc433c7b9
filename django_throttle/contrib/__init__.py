"""Integrations with other packages. Other modules of django_throttle do not import them."""
