"""What an API server's refusal means, named by what the caller should do next.

An object that does not exist is no error: it is an answer (None, or False from a delete).
"""

from towline.errors import TowlineError


class Conflict(TowlineError):
    """409: somebody else changed the object, or it is another one by now. Look again, then decide anew."""


class AlreadyExists(Conflict):
    """409 from a create: the name is taken, perhaps by ourselves. Look whose it is."""


class Refused(TowlineError):
    """403, 422 and their like: the same request will be refused again. `reason` is the API server's word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message
        super().__init__(f"{reason} ({status}): {message}")

    @property
    def quota(self) -> bool:
        """Whether a ResourceQuota is used up: it may have room later."""
        return self.status == 403 and "exceeded quota" in self.message


class TooMany(TowlineError):
    """429: come back in `seconds`."""

    def __init__(self, seconds: float, message: str) -> None:
        self.seconds = seconds
        super().__init__(f"too many requests, again in {seconds:g} s: {message}")


class Unreachable(TowlineError):
    """No answer, a server's fault, or credentials that it does not accept now. Nothing is known of what was done."""


class NotLeading(TowlineError):
    """A write that another operator may be making now. Do not repeat it."""
