"""Print the script of decisions, and on the standard error a call of it under a set of rules, for redis-cli.

``make script RULES='10/s "1000/h algorithm=token_bucket burst=50"'``: each argument is a rate, and options of its rule.
"""

import argparse
import sys
from collections.abc import Sequence
from struct import iter_unpack

from django_throttle.core import Rule
from django_throttle.core.commands import Decide, rule_set
from django_throttle.stores import RedisStore
from django_throttle.stores.redis.transport import ScriptCall

IDENT = "user:42"


def rule_of(name: str, text: str) -> Rule:
    """Return the rule of a text such as ``1000/h algorithm=gcra burst=50``. Raises ValueError."""
    rate, *options = text.split()
    settings = dict(option.split("=", 1) for option in options)
    return Rule.from_options(name, {"rate": rate, **{key: _value(value) for key, value in settings.items()}})


def _value(text: str) -> object:
    return int(text) if text.isdecimal() else {"true": True, "false": False}.get(text.lower(), text)


def quoted(text: str | bytes | int) -> str:
    raw = text if isinstance(text, bytes) else str(text).encode()
    shown = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in raw)
    return f'"{"".join(shown)}"'


def call_of(texts: Sequence[str]) -> ScriptCall:
    """Return the call that decides these rules. Raises ValueError."""
    parts = [part for number, text in enumerate(texts, 1) for part in rule_of(f"rule {number}", text).parts]
    charges = rule_set(tuple(parts)).charges((IDENT,) * len(parts), 1)
    (call,) = RedisStore("redis://127.0.0.1")._redis_command(Decide(charges)).calls
    return call


def main() -> None:
    parser = argparse.ArgumentParser(prog="make script", description=__doc__)
    parser.add_argument("rules", nargs="+", help="a rate, and options of its rule")
    try:
        call = call_of(parser.parse_args().rules)
    except ValueError as error:
        parser.error(str(error))
    _, sha, *arguments = call.by_sha()
    request = call.args[0]
    print(
        f"""One call of {IDENT}. Keep the script as decide.lua, then:
  redis-cli -x SCRIPT LOAD < decide.lua
and in redis-cli, where the reply is packed as the header of decide.lua says:
  EVALSHA {sha} {" ".join(map(quoted, arguments))}
The request, its first binary argument, is {", ".join(f"{number:.0f}" for (number,) in iter_unpack("<d", request))}.""",
        file=sys.stderr,
    )
    sys.stdout.write(call.script.text)


if __name__ == "__main__":
    main()
