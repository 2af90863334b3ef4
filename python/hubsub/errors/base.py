"""The root of the tree, and a helper that hides secrets in URLs."""

import re
from typing import ClassVar


def without_secrets(url: str) -> str:
    """A URL for display: credentials are removed, even from an invalid URL."""
    url = re.sub(r"^([^/:@]*://)?.*@", r"\1***@", url, flags=re.DOTALL)
    return re.sub(r"([?&]pass=)[^&]*", r"\1***", url)


class HubSubError(Exception):
    """Base class of every other error. The head of a subclass has its code, and what differs from its base.

    Args:
        what: Description of the error, a sentence without its full stop; default: the class's `words`.
        value: Value concerned; shown after a colon.
        hint: How to solve it.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    resp: ClassVar[str | None] = None
    """The whole Redis error line, if the data plane has one."""
    retryable: ClassVar[bool] = False
    words: ClassVar[str] = "something went wrong inside"
    advice: ClassVar[str | None] = None
    """Hint used if none is given."""

    def __init_subclass__(
        cls, *, code: str | None = None, status: int | None = None, retryable: bool | None = None
    ) -> None:
        cls.code = code or cls.code
        cls.status = status or cls.status
        cls.retryable = cls.retryable if retryable is None else retryable

    def __init__(self, what: str | None = None, value: object = None, hint: str | None = None) -> None:
        self.what = what or self.words
        self.value = value
        self.hint = hint or self.advice
        super().__init__(self.what)

    @property
    def message(self) -> str:
        """Description of the error and the value concerned, in one line."""
        return self.what if self.value is None else f"{self.what}: {self.value}"

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"
