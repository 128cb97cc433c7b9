"""People who may log in to the admin."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client


def user(*permissions: str, staff: bool = True, superuser: bool = False) -> User:
    """Somebody with these permissions of this app, such as "view_throttlerule"."""
    found = User.objects.create_user("somebody", is_staff=staff, is_superuser=superuser)
    for name in permissions:
        found.user_permissions.add(Permission.objects.get(codename=name))
    return found


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(user(superuser=True))
    return client
