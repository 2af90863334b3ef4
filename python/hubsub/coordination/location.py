"""Location of a coordinator: parses the URL of the configuration.

`SCHEME://[USER:PASSWORD@]HOST[:PORT],…[/PREFIX][?timeout=5s&tls=true&ca=FILE&cert=FILE&key=FILE]`

A host name means all its addresses. Two clusters in one store need different prefixes.
"""

import ssl
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from hubsub.config import Bad, parse_duration, split_address
from hubsub.config.kinds import nearest, parse_flag
from hubsub.errors import ConfigError, Problem

PREFIX = "hubsub"
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Location:
    scheme: str
    hosts: tuple[tuple[str, int], ...]
    """Names or addresses, with ports."""
    prefix: str = PREFIX
    """In front of all keys."""
    user: str | None = None
    password: str = ""
    timeout_s: float = TIMEOUT_S
    """Time limit of one request, in seconds."""
    tls: bool = False
    ca: str | None = None
    """File of trusted certificates; None: those of the system."""
    cert: str | None = None
    """File of the client certificate, with `key`."""
    key: str | None = None

    def ssl_context(self) -> ssl.SSLContext:
        """Raises `ConfigError` if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise ConfigError(
                [Problem("coordinator", None, f"its TLS files cannot be used ({error})")]
            ) from None
        return context


OPTIONS = ["timeout", "tls", "ca", "cert", "key"]


def parse_location(url: str, port_default: int) -> Location:
    """Raises `ConfigError` with the reason; passwords are not shown."""
    try:
        return _parse(url, port_default)
    except Bad as bad:
        raise ConfigError([Problem("coordinator", url, bad.reason, bad.hint)]) from None


def _parse(url: str, port_default: int) -> Location:
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in OPTIONS:
            raise Bad(f"has an unknown option {name!r}", nearest(name, OPTIONS) or ", ".join(OPTIONS))
    files = {name: options.get(name) or None for name in ("ca", "cert", "key")}
    timeout = parse_duration(options["timeout"]) / 1_000 if "timeout" in options else TIMEOUT_S
    if timeout <= 0:
        raise Bad("has no time to wait", "such as timeout=5s")
    return Location(
        parts.scheme,
        tuple(_host(host.strip(), port_default) for host in hosts.split(",")),
        unquote(parts.path).strip("/") or PREFIX,
        unquote(user) or None,
        unquote(password),
        timeout,
        parse_flag(options["tls"]) if "tls" in options else any(files.values()),
        **files,
    )


def _host(text: str, port_default: int) -> tuple[str, int]:
    has_port = ":" in text.rpartition("]")[2]
    try:
        host, port = split_address(text if has_port else f"{text}:{port_default}")
    except ValueError:
        host, port = "", 0
    if not host or not 0 < port < 65_536:
        raise Bad("has no proper HOST:PORT", "SCHEME://HOST:PORT,HOST:PORT")
    return host, port
