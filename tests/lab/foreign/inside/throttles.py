"""Throttle classes of a site, derived from our drop-ins; REST framework imports them while it is imported itself."""

from django_throttle.drf import AnonRateThrottle, UserRateThrottle


class Anon(AnonRateThrottle):
    rate = "90000000/day"


class User(UserRateThrottle):
    rate = "90000000/day"
