"""Exceptions of ``derive``: invalid programs, and theories without the form that an operation needs."""

from operator import index


class ProgramError(ValueError):
    """Error: a program does not describe a training run; the message names the part and the reason."""


class NotApplicable(ValueError):
    """Error: a theory does not have the form that an operation needs; the message says what is missing."""


class NotDerived(NotApplicable):
    """Error: the mean-field theory of a program is not derived; the message names the weight and its rule."""


def require_type(value: object, kind: type, what: str, accepted: str) -> None:
    """Raise :class:`NotApplicable` if ``value`` is not of the type ``kind``.

    The message is made of ``what``, the name of the operation, and of ``accepted``, a text that describes the
    type.

    >>> require_type(3, str, "mean_field", "a program")
    Traceback (most recent call last):
    derive.errors.NotApplicable: mean_field takes a program, not an object of the type int
    """
    if not isinstance(value, kind):
        raise NotApplicable(f"{what} takes {accepted}, not an object of the type {type(value).__name__}")


def require_integer(what: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Return ``value`` as an int; raise ValueError if it is not an integer or is outside the bounds.

    The bounds ``least`` and ``most`` are allowed values; None stands for no bound. ``what`` is the name of
    the value in the message.

    >>> require_integer("order", -1, 0)
    Traceback (most recent call last):
    ValueError: order = -1: must be 0 or more
    """
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{what} = {value!r}: must be an integer") from None
    if (least is not None and number < least) or (most is not None and number > most):
        bounds = f"{least} or more" if most is None else f"from {least} to {most}"
        raise ValueError(f"{what} = {number}: must be {bounds}")
    return number


def require_order(n: object, highest: int) -> int:
    """Return the order ``n`` of a series; raise IndexError unless it is an integer from 0 to ``highest``.

    >>> require_order(3, 2)
    Traceback (most recent call last):
    IndexError: n = 3: the series is known for orders 0 to 2
    """
    try:
        return require_integer("n", n, 0, highest)
    except ValueError:
        raise IndexError(f"n = {n}: the series is known for orders 0 to {highest}") from None
