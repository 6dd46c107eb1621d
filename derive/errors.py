"""What is refused: a program that is none, and a theory that has not the form something needs."""


class ProgramError(ValueError):
    """A program that does not describe a training run; the message says which part and why."""


class NotApplicable(ValueError):
    """A theory has not the form that was asked for; the message says what it lacks."""
