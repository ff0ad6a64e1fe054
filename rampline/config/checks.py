"""What a configuration value may be; each check names the field, the value and what is allowed."""

import math
import sys

from rampline.credentials import check_no_credentials
from rampline.errors import ConfigError

# What TensorFlow, and the files that a setting is written to, can hold.
LARGEST_INTEGER = 2**63 - 1


def check(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise ConfigError(f"{name}={value!r} is not allowed: it must be {allowed}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    check(value in choices, name, value, "one of " + ", ".join(choices))


def check_integer(name: str, value: object, minimum: int) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    allowed = f"a whole number of at least {minimum}"
    check(is_integer and minimum <= value <= LARGEST_INTEGER, name, value, allowed)  # type: ignore[operator]


def check_number(name: str, value: object, minimum: float, maximum: float = math.inf, *, open_at: str = "") -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    inside = is_number and minimum <= value <= maximum  # type: ignore[operator]
    inside = (
        inside and not ("minimum" in open_at and value == minimum) and not ("maximum" in open_at and value == maximum)
    )
    low = f"greater than {minimum:g}" if "minimum" in open_at else f"at least {minimum:g}"
    high = (
        ""
        if maximum == math.inf
        else (f" and less than {maximum:g}" if "maximum" in open_at else f" and at most {maximum:g}")
    )
    check(inside, name, value, f"a number {low}{high}")


def check_text(name: str, value: object) -> None:
    check(isinstance(value, str) and bool(value), name, value, "a non-empty text")
    check_no_credentials(name, value)


def check_flag(name: str, value: object) -> None:
    check(isinstance(value, bool), name, value, "true or false")
