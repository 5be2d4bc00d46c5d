"""JSON as the standard has it: no duplicate keys, no NaN, no Infinity, an object at the top."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from portpe.errors import SpecError


def loads(text: str | bytes, name: str) -> dict[str, Any]:
    """The JSON object in ``text``.

    Args:
        text: what the file holds, in UTF-8.
        name: what errors call it.

    Raises:
        SpecError: not UTF-8, not JSON, a key given twice, a number that is not finite, or no object at the top.
    """

    def refuse(constant: str) -> NoReturn:
        raise SpecError(f"{name} must be JSON, got {constant}, which is no JSON number")

    def finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            raise SpecError(f"{name} must hold finite numbers, got {digits}")
        return number

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key, value in pairs:
            if key in data:
                raise SpecError(f"{name} must not repeat a key, got {key!r} twice")
            data[key] = value
        return data

    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        data = json.loads(decoded, parse_constant=refuse, parse_float=finite, object_pairs_hook=unique)
    except SpecError:
        raise
    except RecursionError:
        raise SpecError(f"{name} must be JSON of moderate depth, got too many levels") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, an integer of too many digits
        raise SpecError(f"{name} must be JSON: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise SpecError(f"{name} must be a JSON object, got {type(data).__name__}")
    return data
