"""Exceptions of ``derive``: invalid programs, and theories without the form that an operation needs."""


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
