"""Rows that a person might type."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User


@pytest.fixture
def anna() -> User:
    return User.objects.create_user("anna", "Anna@example.com")
