"""Topic and room names as text: names are bytes, JSON and terminals are text.

A UTF-8 name is its own text. A byte that is not UTF-8 is written as `%XX`, and so is a `%` that two hex
digits follow, so that every name reads back as the original bytes. The same form holds for input and output.

A device template marks the part of a topic that names the device.
"""

import hashlib
import re

_ESCAPED = re.compile(rb"%[0-9A-Fa-f]{2}")
_ESCAPED_TEXT = re.compile(r"%([0-9A-Fa-f]{2})")


OWN_BYTES_MAX = 64
"""Bytes that an internal name may have beside the client name in it (`hubsub_types::names::OWN_BYTES_MAX`)."""


def text_of(name: bytes) -> str:
    """A name as text.

    >>> text_of("café".encode()), text_of(b"a\\xff"), text_of(b"100%"), text_of(b"%41")
    ('café', 'a%FF', '100%', '%2541')
    """
    escaped = _ESCAPED.sub(lambda m: b"%25" + m.group()[1:], name)
    return escaped.decode("utf-8", "surrogateescape").translate(_ESCAPES)


def bytes_of(text: str) -> bytes:
    """The name of a text; inverse of `text_of`.

    >>> bytes_of("a%FF"), bytes_of("100%")
    (b'a\\xff', b'100%')
    """
    parts = _ESCAPED_TEXT.split(text)
    return b"".join(
        bytes.fromhex(part) if i % 2 else part.encode("utf-8", "surrogateescape")
        for i, part in enumerate(parts)
    )


def literal_glob(name: bytes) -> bytes:
    """A name as a glob that matches it alone.

    >>> literal_glob(b"a*[b]")
    b'a\\\\*\\\\[b\\\\]'
    """
    return re.sub(rb"[\\*?\[\]]", rb"\\\g<0>", name)


def producer_id(name: str) -> int:
    """The id of a named producer in the log.

    It is the first 8 bytes of the SHA-256 of the name in UTF-8, big-endian, with the highest bit set: numbers
    below 2**63 are left to unnamed producers.

    >>> hex(producer_id("billing-7"))
    '0xf95ae464d6c6209c'
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) | 1 << 63


def redis_cluster_id(cluster: str, node: str) -> str:
    """The id of a node for Redis cluster clients: the same after each restart, 40 hexadecimal digits.

    Args:
        cluster: Id of the cluster; empty for a single node.
        node: Name of the node.

    >>> redis_cluster_id("", "one")
    '6734dbeeed1b6f8b0402db9349182a4eb40baa39'
    """
    return hashlib.sha1(f"{cluster}/{node}".encode(), usedforsecurity=False).hexdigest()


DEVICE = "{device}"
"""Placeholder of the device in a template."""


def device_pattern(template: str) -> str:
    """A device template as a regular expression whose first group is the device; valid in Python and Java.

    Its levels are text, `+` for any one, or contain `{device}`, once in the template. `/#` may follow, for
    all lower levels, or `*` at the end of the last level, for any text. A device has at least one character
    and no `/`; where `*` leaves a choice it is the shortest match.

    >>> pattern = device_pattern("devices/{device}/#")
    >>> [re.match(pattern, topic)[1] for topic in ("devices/a", "devices/b/state")]
    ['a', 'b']

    Raises:
        ValueError: the template does not mark one device; the text has the reason.
    """
    if template.count(DEVICE) != 1:
        raise ValueError("has no {device}" if DEVICE not in template else "has {device} more than once")
    is_below, is_open = template.endswith("/#"), template.endswith("*")
    text = template[:-2] if is_below else template[:-1] if is_open else template
    if is_open and text.endswith(DEVICE):
        raise ValueError("has `*` right behind {device}, which ends nowhere then")
    parts = []
    for level in text.split("/"):
        if level != "+" and set(level) & set("+#*"):
            raise ValueError(f"has a wildcard in a wrong place: {level!r}")
        before, _, behind = level.partition(DEVICE)
        group = ("([^/]+?)" if is_open else "([^/]+)") if DEVICE in level else ""
        parts.append("[^/]*" if level == "+" else re.escape(before) + group + re.escape(behind))
    # As in MQTT: a topic that begins with `$` is matched only by a template that begins with it.
    begin = "^" if template.startswith("$") else r"^(?!\$)"
    end = r"[\s\S]*" if is_open else r"(?:/[\s\S]*)?(?![\s\S])" if is_below else r"(?![\s\S])"
    return begin + "/".join(parts) + end


ACTION = "{action}"
"""Placeholder of the action in a template of action topics."""


def device_topics(template: str | None, state: str | None, actions: str | None) -> tuple[str, str] | None:
    """Templates of each device's topics: of its state, and of its actions.

    If the class does not define them, they follow the device: possible if the template continues after the
    device with `/` or `:` and then any text, and has no other wildcard.

    >>> device_topics("devices/{device}/#", None, None)
    ('devices/{device}/state', 'devices/{device}/actions/{action}')
    >>> device_topics("device:{device}:*", None, None)
    ('device:{device}:state', 'device:{device}:actions:{action}')

    Args:
        template: `device` of the class.
        state: Its `device_state`.
        actions: Its `device_actions`.

    Returns:
        State and action template; None if one of them is unknown.
    """
    if template is not None:
        base = template[:-1]
        before, _, separator = base.rpartition(DEVICE)
        if template[-1:] in ("#", "*") and separator in ("/", ":") and not set(before) & set("+#*"):
            state = state or f"{base}state"
            actions = actions or f"{base}actions{separator}{ACTION}"
    return None if state is None or actions is None else (state, actions)


# The characters to which surrogateescape maps bytes that are not UTF-8.
_ESCAPES = {0xDC00 + byte: f"%{byte:02X}" for byte in range(0x80, 0x100)}
