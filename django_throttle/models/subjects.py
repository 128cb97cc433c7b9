"""Subjects of overrides: reads what an operator types, and returns the text that is stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Final

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.utils.translation import gettext

from django_throttle.conf import conf
from django_throttle.core.key import EVERYONE
from django_throttle.core.overrides import MAX_SUBJECT_LENGTH
from django_throttle.core.texts import gettext_lazy, sentences
from django_throttle.exceptions import InvalidIdent
from django_throttle.identity.address import network, unmapped
from django_throttle.identity.keys import ident_of, user_value
from django_throttle.models.fields import is_text
from django_throttle.models.typed_keys import ident_of_typed_key
from django_throttle.translated import translated

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.db.models import Manager

    from django_throttle.core import Rule

# The hash of an API key is stored with this in front, so that a form can tell it from a key that was typed.
HASHED: Final = "hash:"
TAG_SHAPE: Final = f"^{HASHED}[A-Za-z0-9_-]{{22}}$"


def tidy_subject(kind: str, typed: str) -> str:
    """The text that is stored for what was typed; raises ValidationError when nobody is meant. Idempotent."""
    text = typed.strip()
    if not text or not text.isprintable() or len(text) > MAX_SUBJECT_LENGTH:
        raise ValidationError(gettext("Write 1 to {most} printable characters.").format(most=MAX_SUBJECT_LENGTH))
    tidy = _TIDY.get(kind)
    return tidy(text) if tidy else text


def typed_ident(typed: str) -> str:
    """The ident that was typed: an ident, or a user's name or e-mail address, or an address.

    Users and addresses may be without their kind. What names neither is an ident as it stands. Raises ValidationError
    for what may be several users.
    """
    kind, colon, value = typed.partition(":")
    text = value if kind == "ip" else typed
    if address := network(text, conf().IPV6_PREFIX) or (_is_network(text) and _address(text)):
        return f"ip:{address}"
    if typed == EVERYONE or (colon and kind != "user"):
        return typed
    name = value if colon else typed
    return f"user:{_user(name)}" if users_meant(name) else typed


def check_ident(ident: str) -> None:
    """Raise ValidationError for an ident from ``typed_ident`` whose user or address does not exist, or for a network.

    What a function of the site's own names users by cannot be looked up.
    """
    kind, colon, value = ident.partition(":")
    if colon and kind == "ip":
        found = _address(value)
        if "/" in found and not (":" in found and found.endswith(f"/{conf().IPV6_PREFIX}")):
            said = gettext("{network} has no budget of its own, only its addresses have: write one of them.")
            raise ValidationError(said.format(network=found))
    elif colon and (kind != "user" or conf().USER_IDENT):
        return
    elif ident != EVERYONE and users_meant(value if colon else ident) == []:
        _user(value if colon else ident)


def _is_network(text: str) -> bool:
    try:
        return "/" in text and bool(ip_network(text, strict=False))
    except ValueError:
        return False


def subject_of(kind: str, value: str) -> str:
    """The subject of a stored row, written as in overrides and idents."""
    if kind == "group":
        return f"group:{value}"
    if kind == "api_key":
        return f"api_key:{value.removeprefix(HASHED)}"
    return ident_of(kind, _widened(value) if kind == "ip" else value) or f"{kind}:"


def find_users(typed: str) -> list[AbstractBaseUser]:
    """The users who have this id, name or e-mail address."""
    if not is_text(typed):  # no database could be asked
        return []
    users = _users()
    found = [user for query in _queries(typed) for user in users.filter(**query)[:2]]
    return list({user.pk: user for user in found}.values())


def users_meant(typed: str) -> list[AbstractBaseUser] | None:
    """The same; None where the site has no users."""
    with suppress(ValidationError):
        return find_users(typed)
    return None


def values_of_users(typed: str) -> list[str]:
    """The stored values of the users that a search may mean."""
    with suppress(ValidationError):
        return [_user_value(user) for user in find_users(typed)]
    return []


def names_of_users(values: Iterable[str]) -> dict[str, str]:
    """The names of users by their stored values; without those that were deleted, or that USER_IDENT names."""
    wanted = set(values)
    if not wanted or conf().USER_IDENT:
        return {}
    found = _users().in_bulk([pk for pk in map(_as_pk, wanted) if pk is not None])
    return {str(pk): user.get_username() for pk, user in found.items()}


def networks_around(typed: str) -> list[str]:
    """The stored values of the address and of all networks that contain it; empty when it is not an address."""
    try:
        own = ip_network(_address(typed))
    except (ValidationError, ValueError):
        return []
    networks = [str(own.supernet(new_prefix=length)) for length in range(1, own.prefixlen + 1)]
    return [*networks, str(own.network_address)]


def missing_group(name: str) -> str:
    """A sentence for a group that is not there, with the nearest name; empty where it is, or groups are not in use."""
    if not apps.is_installed("django.contrib.auth"):
        return ""
    # Compared here, not by the database: to MariaDB "VIP" is "vip", to a rule or an override it is not.
    known = list(apps.get_model("auth", "Group")._default_manager.values_list("name", flat=True))
    if name in known:
        return ""
    missing = gettext_lazy("There is no group {name!r} yet, so nobody is in it.", name=name)
    return translated(sentences([missing, nearest(name, known)]))


def missing_groups(rule: Rule) -> Iterator[str]:
    """A sentence for each group of the rule's audience or plans that is not there."""
    for entry in (*rule.audience, *(who for who, _ in rule.by_plan)):
        kind, _, name = entry.partition(":")
        if kind == "group" and (warning := missing_group(name)):
            yield warning


def nearest(name: str, known: Iterable[str]) -> str:
    """The nearest of the known names, as a sentence; empty where none is near."""
    near = get_close_matches(name, sorted(known), n=1)
    return gettext_lazy("Did you mean {near!r}?", near=near[0]) if near else ""


def _as_pk(text: str) -> object:
    """The primary key that the text is; None when it cannot be one."""
    field = get_user_model()._meta.pk
    with suppress(ValidationError, ValueError):
        pk = field.to_python(text)
        field.run_validators(pk)  # else a number that is too long is an error of the database
        return pk
    return None


def _users() -> Manager[AbstractBaseUser]:
    try:
        return get_user_model()._default_manager
    except ImproperlyConfigured as error:
        raise ValidationError(gettext("This site has no users.")) from error


def _queries(typed: str) -> Iterator[dict[str, object]]:
    model = get_user_model()
    if (pk := _as_pk(typed)) is not None:
        yield {"pk": pk}
    yield {model.USERNAME_FIELD: typed}
    if "@" in typed and (email := getattr(model, "get_email_field_name", str)()):
        yield {f"{email}__iexact": typed}


def _user(typed: str) -> str:
    found = find_users(typed)
    if len(found) == 1:
        return _user_value(found[0])
    if not found:
        raise ValidationError(gettext("No user has the id, name or e-mail address {typed!r}.").format(typed=typed))
    users = ", ".join(f"{user.get_username()} (id {user.pk})" for user in found)
    raise ValidationError(gettext("Several users match: {users}. Write what only one of them has.").format(users=users))


def _user_value(user: AbstractBaseUser) -> str:
    try:
        name = user_value(user)
    except InvalidIdent as error:
        raise ValidationError(str(error)) from error
    if name in (None, ""):
        said = gettext("USER_IDENT returned no identifier for {name}.").format(name=user.get_username())
        raise ValidationError(said)
    return str(name)


def _address(typed: str) -> str:
    if "/" not in typed:
        if found := network(typed, conf().IPV6_PREFIX):
            return found
        said = gettext("{typed!r} is not an address. Write one like 203.0.113.9, or a network like 203.0.113.0/24.")
        raise ValidationError(said.format(typed=typed))
    try:
        parsed = unmapped(ip_network(typed, strict=False))
    except ValueError:
        said = gettext("{typed!r} is not a network. Write one like 203.0.113.0/24 or 2001:db8::/48.")
        raise ValidationError(said.format(typed=typed)) from None
    if parsed.prefixlen == 0:
        said = gettext("This network contains every address. To change a limit for everyone, edit the rule.")
        raise ValidationError(said)
    return _checked(parsed)


def _checked(parsed: IPv4Network | IPv6Network) -> str:
    """The network in its one notation; a single IPv4 address without the number of bits."""
    least = conf().IPV6_PREFIX
    if parsed.version == 6 and parsed.prefixlen > least:
        whole = parsed.supernet(new_prefix=least)
        said = gettext("IPv6 addresses count by their first {bits} bits (IPV6_PREFIX): write {whole}.")
        raise ValidationError(said.format(bits=least, whole=whole))
    return str(parsed.network_address) if parsed.prefixlen == 32 and parsed.version == 4 else str(parsed)


def _widened(value: str) -> str:
    """The network widened to IPV6_PREFIX, in case the setting was lowered after the row was stored."""
    try:
        parsed = ip_network(value)
    except ValueError:
        return value  # reading the override refuses it
    least = conf().IPV6_PREFIX
    return str(parsed.supernet(new_prefix=least)) if parsed.version == 6 and parsed.prefixlen > least else value


def _api_key(typed: str) -> str:
    return typed if re.match(TAG_SHAPE, typed) else HASHED + ident_of_typed_key(typed).removeprefix("api_key:")


_TIDY: Final[dict[str, Callable[[str], str]]] = {"user": _user, "ip": _address, "api_key": _api_key}
