"""Subjects of overrides and idents, as operators type them: users, addresses, networks, groups, API keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Final

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.utils.translation import gettext

from django_throttle.conf import conf
from django_throttle.core.key import EVERYONE
from django_throttle.core.options import nearest_word
from django_throttle.core.overrides import MAX_SUBJECT_LENGTH
from django_throttle.core.texts import sentences, translatable
from django_throttle.identity.address import network, unmapped
from django_throttle.identity.keys import ident_of
from django_throttle.models.fields import is_text
from django_throttle.models.typed_keys import check_tenant, ident_of_typed_key
from django_throttle.translated import translated

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.db.models import Manager

    from django_throttle.core import Rule

#: Prefix of the stored hash of an API key. It distinguishes the hash from a typed key.
KEY_HASH_PREFIX: Final = "hash:"
KEY_HASH_PATTERN: Final = f"^{KEY_HASH_PREFIX}[A-Za-z0-9_-]{{22}}$"


def stored_value(kind: str, typed: str) -> str:
    """Return the stored value of a typed subject, or of its ident. Raise ValidationError if it does not exist.

    A stored value is returned unchanged.
    """
    stripped = typed.strip()
    text = stripped.removeprefix(f"{kind}:")
    if not text or not text.isprintable() or len(text) > MAX_SUBJECT_LENGTH:
        raise ValidationError(gettext("Write 1 to {most} printable characters.").format(most=MAX_SUBJECT_LENGTH))
    if kind == "api_key" and text != stripped and re.match(KEY_HASH_PATTERN, KEY_HASH_PREFIX + text):
        return KEY_HASH_PREFIX + text
    convert = _CONVERTERS.get(kind)
    return convert(text) if convert else text


def typed_ident(typed: str) -> str:
    """Return the ident for a typed ident, address, or name or e-mail address of a user.

    Users and addresses need no prefix. Other text is returned unchanged. Raise ValidationError if several users match.
    """
    kind, colon, value = typed.partition(":")
    text = value if kind == "ip" else typed
    if address := network(text, conf().IPV6_PREFIX) or (_is_network(text) and _address(text)):
        return f"ip:{address}"
    if typed == EVERYONE or (colon and kind != "user"):
        return typed
    name = value if colon else typed
    return f"user:{_user(name)}" if try_find_users(name) else typed


def check_ident(ident: str) -> None:
    """Raise ValidationError for a result of ``typed_ident`` if its user or address does not exist, or for a network."""
    kind, colon, value = ident.partition(":")
    if colon and kind == "ip":
        address = _address(value)
        if "/" in address and not (":" in address and address.endswith(f"/{conf().IPV6_PREFIX}")):
            message = gettext("{network} has no budget of its own, only its addresses have: write one of them.")
            raise ValidationError(message.format(network=address))
    elif colon and kind == "tenant":
        check_tenant(value)
    elif colon and kind != "user":
        return
    elif ident != EVERYONE and try_find_users(value if colon else ident) == []:
        _user(value if colon else ident)


def _is_network(text: str) -> bool:
    try:
        return "/" in text and bool(ip_network(text, strict=False))
    except ValueError:
        return False


def subject_of(kind: str, value: str) -> str:
    """Return the subject of a row, such as "user:42"."""
    if kind == "group":
        return f"group:{value}"
    if kind == "api_key":
        return f"api_key:{value.removeprefix(KEY_HASH_PREFIX)}"
    return ident_of(kind, _widened_value(value) if kind == "ip" else value) or f"{kind}:"


def find_users(typed: str) -> list[AbstractBaseUser]:
    """Return the users with this id, name or e-mail address. Raise ValidationError if the site has no users."""
    if not is_text(typed):  # databases raise an error
        return []
    manager = _user_manager()
    users = [user for query in _queries(typed) for user in manager.filter(**query)[:2]]
    return list({user.pk: user for user in users}.values())


def try_find_users(typed: str) -> list[AbstractBaseUser] | None:
    """Return the users with this id, name or e-mail address, or None if the site has no users."""
    with suppress(ValidationError):
        return find_users(typed)
    return None


def values_of_users(typed: str) -> list[str]:
    """Return the stored values of users with this id, name or e-mail address."""
    return [str(user.pk) for user in try_find_users(typed) or ()]


def names_of_users(values: Iterable[str]) -> dict[str, str]:
    """Return the names of users by their stored values. Leave out deleted users."""
    primary_keys = {pk for pk in map(_as_pk, set(values)) if pk is not None}
    users = _user_manager().in_bulk(primary_keys) if primary_keys else {}
    return {str(pk): user.get_username() for pk, user in users.items()}


def networks_around(typed: str) -> list[str]:
    """Return the stored values of an address and of all networks that contain it. Return [] for other text."""
    try:
        address = ip_network(_address(typed))
    except (ValidationError, ValueError):
        return []
    networks = [str(address.supernet(new_prefix=length)) for length in range(1, address.prefixlen + 1)]
    return [*networks, str(address.network_address)]


def missing_group(name: str) -> str:
    """Return a sentence for a group that does not exist, with the nearest name. Return "" if it exists.

    Return "" on a site without django.contrib.auth, too.
    """
    if not apps.is_installed("django.contrib.auth"):
        return ""
    # Compared here, because MariaDB ignores case, unlike rules and overrides.
    names = list(apps.get_model("auth", "Group")._default_manager.values_list("name", flat=True))
    if name in names:
        return ""
    missing = translatable("There is no group {name!r} yet, so nobody is in it.", name=name)
    return translated(sentences([missing, nearest(name, names)]))


def missing_groups(rule: Rule) -> Iterator[str]:
    """Yield a sentence for each group of the rule's audience or plans that does not exist."""
    for entry in (*rule.audience, *(plan for plan, _ in rule.by_plan)):
        kind, _, name = entry.partition(":")
        if kind == "group" and (warning := missing_group(name)):
            yield warning


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a sentence that suggests the nearest of the names. Return "" if none is near."""
    near = nearest_word(name, sorted(names))
    return translatable("Did you mean {near!r}?", near=near) if near else ""


def _as_pk(text: str) -> object:
    """Return the text as a primary key of a user, or None if it cannot be one."""
    field = get_user_model()._meta.pk
    with suppress(ValidationError, ValueError):
        pk = field.to_python(text)
        field.run_validators(pk)  # databases raise an error for a number that is too long
        return pk
    return None


def _user_manager() -> Manager[AbstractBaseUser]:
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
    """Return the stored value of the only user with this id, name or e-mail address. Raise ValidationError."""
    users = find_users(typed)
    if len(users) == 1:
        return str(users[0].pk)
    if not users:
        raise ValidationError(gettext("No user has the id, name or e-mail address {typed!r}.").format(typed=typed))
    names = ", ".join(f"{user.get_username()} (id {user.pk})" for user in users)
    raise ValidationError(gettext("Several users match: {users}. Write what only one of them has.").format(users=names))


def _address(typed: str) -> str:
    """Return the stored value of an address or a network. Raise ValidationError."""
    if "/" not in typed:
        if address := network(typed, conf().IPV6_PREFIX):
            return address
        message = gettext("{typed!r} is not an address. Write one like 203.0.113.9, or a network like 203.0.113.0/24.")
        raise ValidationError(message.format(typed=typed))
    try:
        parsed = unmapped(ip_network(typed, strict=False))
    except ValueError:
        message = gettext("{typed!r} is not a network. Write one like 203.0.113.0/24 or 2001:db8::/48.")
        raise ValidationError(message.format(typed=typed)) from None
    if parsed.prefixlen == 0:
        message = gettext("This network contains every address. To change a limit for everyone, edit the rule.")
        raise ValidationError(message)
    if (wider := _widened(parsed)) != parsed:
        message = gettext("IPv6 addresses count by their first {bits} bits (IPV6_PREFIX): write {whole}.")
        raise ValidationError(message.format(bits=wider.prefixlen, whole=wider))
    return str(parsed.network_address) if parsed.prefixlen == 32 and parsed.version == 4 else str(parsed)


def _widened(parsed: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """Return an IPv6 network with IPV6_PREFIX bits at most."""
    max_bits = conf().IPV6_PREFIX
    return parsed.supernet(new_prefix=max_bits) if parsed.version == 6 and parsed.prefixlen > max_bits else parsed


def _widened_value(value: str) -> str:
    """Return a stored address as it counts now, because IPV6_PREFIX may have been lowered."""
    try:
        parsed = ip_network(value)
    except ValueError:
        return value  # reading the override refuses it
    wider = _widened(parsed)
    return value if wider == parsed else str(wider)


def _api_key(typed: str) -> str:
    if re.match(KEY_HASH_PATTERN, typed):
        return typed
    return KEY_HASH_PREFIX + ident_of_typed_key(typed).removeprefix("api_key:")


_CONVERTERS: Final[dict[str, Callable[[str], str]]] = {
    "user": _user,
    "ip": _address,
    "api_key": _api_key,
    "tenant": check_tenant,
}
