"""The root of the tree, and what may be shown of a URL."""

import re
from typing import ClassVar


def without_secrets(url: str) -> str:
    """A URL as an error may show it: who logs in is left out, also where it is no proper URL."""
    url = re.sub(r"^([^/:@]*://)?.*@", r"\1***@", url, flags=re.DOTALL)
    return re.sub(r"([?&]pass=)[^&]*", r"\1***", url)


class HubSubError(Exception):
    """What every other error is.

    Args:
        what: What happened, a sentence without its full stop; default: the class's own words.
        value: The value it happened with; shown after a colon.
        hint: What to do about it.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    resp: ClassVar[str | None] = None
    """The whole Redis error line, where the data plane answers one."""
    retryable: ClassVar[bool] = False
    words: ClassVar[str] = "something went wrong inside"
    advice: ClassVar[str | None] = None
    """The hint, where none is given."""

    def __init__(self, what: str | None = None, value: object = None, hint: str | None = None) -> None:
        self.what = what or self.words
        self.value = value
        self.hint = hint or self.advice
        super().__init__(self.what)

    @property
    def message(self) -> str:
        """What happened and with which value, in one line."""
        return self.what if self.value is None else f"{self.what}: {self.value}"

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"
