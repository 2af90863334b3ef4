"""Validation of patterns and templates of classes.

The data plane resolves rooms. This module only refuses what cannot work: a pattern that no name can match,
and a template whose rooms its own class does not match (such a room would get another class's policy).
"""

import re
from collections.abc import Sequence

from hubsub.config.kinds import Bad
from hubsub.names import ACTION, DEVICE, device_pattern


def parse_pattern(text: str) -> re.Pattern[str]:
    """Translates a class pattern into a regular expression for full matches.

    Raises:
        Bad: The pattern is empty, or an MQTT filter with a misplaced wildcard.
    """
    syntax, body = _syntax(text)
    if not body:
        raise Bad("has an empty pattern", "leave `match` out to match all rooms")
    return re.compile(_filter(body) if syntax == "mqtt" else _glob(body), re.DOTALL)


def may_overlap(one: str, other: str) -> bool:
    """Whether a name may match both patterns. Only their literal prefixes are compared.

    >>> may_overlap("chat/#", "chat*"), may_overlap("irc:*", "chat:*"), may_overlap("a*", "+/state")
    (True, False, True)
    """
    begins, begins_other = _literal(one), _literal(other)
    return begins.startswith(begins_other) or begins_other.startswith(begins)


def covers(pattern: str, of_class: Sequence[str]) -> bool:
    """Whether a pattern certainly matches every name that a class's patterns match; no patterns match all.

    >>> covers("chat:*", ["chat:*"]), covers("chat*", ["chat:*", "chat/#"]), covers("chat:a*", ["chat:*"])
    (True, True, False)
    """
    syntax, body = _syntax(pattern)
    begin = body[:-1] if body.endswith("*" if syntax == "glob" else "#") else None
    # Only literal prefixes are compared: a pattern with more wildcards covers only itself.
    is_plain = begin is not None and _literal(f"{syntax}:{body}") == begin.removesuffix(
        "/" * (syntax == "mqtt")
    )
    if not of_class:
        return is_plain and begin == "" and syntax == "glob"
    return all(
        other == pattern or (is_plain and begin is not None and _covers(syntax, begin, _literal(other)))
        for other in of_class
    )


def _covers(syntax: str, begin: str, literal: str) -> bool:
    """Whether a prefix covers all names that begin with `literal`; MQTT wildcards match no initial `$`."""
    if syntax == "mqtt" and begin == "":
        return literal != "" and not literal.startswith("$")
    return literal.startswith(begin)


def _literal(pattern: str) -> str:
    """The literal prefix of all names that match."""
    syntax, body = _syntax(pattern)
    if syntax == "mqtt":
        # `#` matches its parent level, too.
        return re.split(r"/?#|\+", body, maxsplit=1)[0]
    return re.split(r"[*?\[\\]", body, maxsplit=1)[0]


def _syntax(text: str) -> tuple[str, str]:
    for syntax in ("mqtt", "glob"):
        if text.startswith(syntax + ":"):
            return syntax, text[len(syntax) + 1 :]
    return ("mqtt" if text.endswith("#") or "+" in text.split("/") else "glob"), text


def _filter(text: str) -> str:
    levels = text.split("/")
    for i, level in enumerate(levels):
        if "#" in level and (level != "#" or i != len(levels) - 1):
            raise Bad(
                f"has `#` in a wrong place: {text!r}",
                "it stands alone, as the last level; or put `glob:` in front",
            )
        if "+" in level and level != "+":
            raise Bad(
                f"has `+` beside other characters: {text!r}", "it is a whole level; or put `glob:` in front"
            )
    parts = ["[^/]*" if level == "+" else re.escape(level) for level in levels if level != "#"]
    expression = "/".join(parts)
    if levels[-1] == "#":
        expression = expression + "(?:/.*)?" if parts else ".*"
    return ("(?!\\$)" if levels[0] in ("+", "#") else "") + expression


def _glob(text: str) -> str:
    out: list[str] = []
    i = 0
    while i < len(text):
        char = text[i]
        if char == "*":
            if not out or out[-1] != ".*":
                out.append(".*")
        elif char == "?":
            out.append(".")
        elif char == "\\" and i + 1 < len(text):
            i += 1
            out.append(re.escape(text[i]))
        elif char == "[":
            members, i = _class_end(text, i + 1)
            out.append(members)
            continue
        else:
            out.append(re.escape(char))
        i += 1
    return "".join(out)


def _class_end(text: str, i: int) -> tuple[str, int]:
    """The character class that starts after `[`, and the index after its end."""
    negated = text[i : i + 1] == "^"
    i += negated
    members = []
    while i < len(text) and text[i] != "]":
        if text[i] == "\\" and i + 1 < len(text):
            i += 1
        elif text[i + 1 : i + 2] == "-" and i + 2 < len(text):
            low, high = sorted((text[i], text[i + 2]))
            members.append(f"{re.escape(low)}-{re.escape(high)}")
            i += 3
            continue
        members.append(re.escape(text[i]))
        i += 1
    if not members:
        return ("." if negated else "(?!)"), i + 1
    return f"[{'^' if negated else ''}{''.join(members)}]", i + 1


def parse_template(text: str) -> tuple[str, ...] | None:
    """Splits a room template into levels; None if the topic is the room.

    Raises:
        Bad: The template is empty, has a `#`, or a level mixes `+` with other characters.
    """
    if text == "topic":
        return None
    levels = tuple(text.split("/"))
    if not text or any("#" in level or ("+" in level and level != "+") for level in levels):
        raise Bad("is no template", "`topic`, or levels such as `devices/+`, where `+` keeps a whole level")
    return levels


def check_device(template: str) -> None:
    """Checks that a template marks the device in a topic.

    Raises:
        Bad: It does not.
    """
    try:
        device_pattern(template)
    except ValueError as error:
        raise Bad(str(error), "such as devices/{device}/# or device:{device}:*") from None


def check_state_topic(device: str | None, topic: str) -> None:
    """Checks that a template yields a topic per device, and that `device` finds the device in that topic.

    Raises:
        Bad: It does not, or the class has no `device`.
    """
    _check_topic(device, topic, "such as devices/{device}/state")


def check_action_topic(device: str | None, topic: str) -> None:
    """Checks that a template yields a topic per device and action, as `check_state_topic` does.

    Raises:
        Bad: It does not, or the class has no `device`.
    """
    hint = "such as devices/{device}/actions/{action}"
    before = topic.removesuffix(ACTION)
    if topic.count(ACTION) != 1 or before[-1:] not in ("/", ":"):
        raise Bad("does not end with {action} behind / or :", hint)
    _check_topic(device, before + "x", hint)


def _check_topic(device: str | None, topic: str, hint: str) -> None:
    if device is None:
        raise Bad("is for a class with `device`", 'such as device = "devices/{device}/#"')
    if topic.count(DEVICE) != 1 or set(topic) & set("+#*\0"):
        raise Bad("names no device's topic: it has {device} once and no wildcard", hint)
    found = re.match(device_pattern(device), topic.replace(DEVICE, "x"))
    if found is None or found[1] != "x":
        raise Bad(f"does not fit the class's device, {device}", hint)


def check_share_strategy(text: str) -> None:
    """Checks that a text names a strategy that selects a group's member for a record.

    Raises:
        Bad: It does not.
    """
    of_header = text.startswith("hash:header:") and text != "hash:header:"
    if not of_header and text not in ("round-robin", "random", "sticky", "hash:topic", "hash:publisher"):
        hint = "round-robin, random, sticky, hash:topic, hash:publisher or hash:header:NAME decides"
        raise Bad("no such way to share", hint)


def room_of(template: tuple[str, ...], topic: str) -> str:
    """The topic's leading levels, as many as the template has; the whole topic if it does not apply."""
    levels = topic.split("/")
    applies = len(levels) >= len(template) and all(
        want in ("+", have) for want, have in zip(template, levels, strict=False)
    )
    return "/".join(levels[: len(template)]) if applies else topic


def strange_room(patterns: list[str], template: tuple[str, ...]) -> tuple[str, str] | None:
    """Finds a topic of the class whose room, by the template, the class does not match.

    Sound but not complete: it tries sample topics of each pattern.

    Returns:
        Topic and room; None if none was found.
    """
    compiled = [parse_pattern(pattern) for pattern in patterns]
    for pattern in patterns:
        for topic in _samples(pattern, template):
            if any(c.fullmatch(topic) for c in compiled):
                room = room_of(template, topic)
                if not any(c.fullmatch(room) for c in compiled):
                    return topic, room
    return None


def _samples(pattern: str, template: tuple[str, ...]) -> list[str]:
    syntax, body = _syntax(pattern)
    fitting = "/".join("x" if level == "+" else level for level in template)
    if syntax == "mqtt":
        stem = "/".join("x" if level == "+" else level for level in body.split("/") if level != "#")
        tails = ["", "/x", "/x/y", "/x/y/z"] if body.endswith("#") else [""]
        stems = [stem + tail if stem else tail.lstrip("/") for tail in tails]
    else:
        plain = re.sub(r"\\(.)", r"\1", re.sub(r"\[[^\]]*\]|\?", "x", body))
        stems = [plain.replace("*", fill) for fill in ("", "x", "x/y", "x/y/z", "/x/y")]
    return [*stems, fitting, fitting + "/x", fitting + "/x/y"]
