"""What is refused: a program that is none, and a theory that has not the form something needs."""


class ProgramError(ValueError):
    """A program that does not describe a training run; the message says which part and why."""


class NotApplicable(ValueError):
    """A theory has not the form that was asked for; the message says what it lacks."""


class NotDerived(NotApplicable):
    """A program whose mean-field theory is not derived; the message names the weight and its rule."""


def require_type(value: object, kind: type, what: str, accepted: str) -> None:
    """Raise :class:`NotApplicable` for an argument of another type, with what would do.

    >>> require_type(3, str, "mean_field", "a program")
    Traceback (most recent call last):
    derive.errors.NotApplicable: mean_field takes a program, not an object of the type int
    """
    if not isinstance(value, kind):
        raise NotApplicable(f"{what} takes {accepted}, not an object of the type {type(value).__name__}")
