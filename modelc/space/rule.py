"""What the derivation rules have in common."""


class DoesNotApply(Exception):
    """The rule's precondition does not hold for this Task."""
