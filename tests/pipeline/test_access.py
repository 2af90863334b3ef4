"""TLS, tokens, and servers that are no nodes."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException

from hubsub.testing import Node
from pipeline.fake_log import FakeLog, rows


class Authority(NamedTuple):
    """A certificate authority: its certificate, and a key with a certificate that it signed for 127.0.0.1."""

    ca: Path
    key: Path
    certificate: Path


@pytest.fixture(scope="module")
def authority(
    needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Authority]:
    """Returns a function that creates an authority."""
    needs("openssl")

    def make() -> Authority:
        home = tmp_path_factory.mktemp("tls")

        def openssl(*arguments: str) -> None:
            subprocess.run(["openssl", *arguments], cwd=home, check=True, capture_output=True)

        ec = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        openssl("req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1")
        one = ("-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=one", "-days", "2")
        openssl("req", "-x509", *ec, *signed, *one, "-addext", "basicConstraints=critical,CA:FALSE")
        return Authority(home / "ca.pem", home / "key.pem", home / "cert.pem")

    return make


@pytest.fixture(scope="module")
def ours(authority: Callable[[], Authority]) -> Authority:
    return authority()


def table() -> dict[int, Any]:
    return {1: rows(1, 1, 101)}


@pytest.fixture
def secret(ours: Authority) -> Iterator[FakeLog]:
    """A log served over TLS that also requires a client certificate of the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ours.certificate, ours.key)
    with FakeLog(table(), tls=context) as log:
        yield log


def count(spark: Any, servers: str, **options: object) -> int:
    reader = spark.read.format("hubsub").option("servers", servers).option("retrySeconds", "0.3")
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), str(value))
    found: int = reader.load().count()
    return found


def refused(spark: Any, servers: str, **options: object) -> str:
    with pytest.raises(PySparkException) as raised:
        count(spark, servers, **options)
    return str(raised.value)


def test_a_log_behind_tls_is_read_with_the_certificate_of_its_authority(
    spark: Any, secret: FakeLog, ours: Authority
) -> None:
    assert count(spark, f"https://{secret.address}", tls_ca=ours.ca) == 100
    assert count(spark, f"https://{secret.address}", tls_verify="false") == 100


def test_a_certificate_of_another_authority_is_told_and_nothing_is_sent(
    spark: Any, secret: FakeLog, authority: Callable[[], Authority]
) -> None:
    said = refused(spark, f"https://{secret.address}", tls_ca=authority().ca, token="t0p")
    assert "NotConnectedError: no server answers" in said and "hint: tls.ca names the file" in said
    assert secret.headers == []


def test_a_file_of_a_certificate_that_is_not_there_is_named(spark: Any, secret: FakeLog) -> None:
    said = refused(spark, f"https://{secret.address}", tls_ca="/nowhere/ca.pem")
    assert "PipelineError: the files for TLS cannot be used" in said and "/nowhere/ca.pem" in said


def test_a_client_shows_its_certificate(spark: Any, ours: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ours.certificate, ours.key)
    context.load_verify_locations(ours.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with FakeLog(table(), tls=context) as log:
        who = {"tls_cert": ours.certificate, "tls_key": ours.key}
        assert count(spark, f"https://{log.address}", tls_ca=ours.ca, **who) == 100
        assert "NotConnectedError: no server answers" in refused(
            spark, f"https://{log.address}", tls_ca=ours.ca
        )


def test_a_wrong_token_is_told_at_once_and_is_not_shown(spark: Any) -> None:
    with FakeLog(table(), token="t0p") as log:
        assert count(spark, log.address, token="t0p") == 100
        before = len(log.headers)
        for options in ({"token": "wr0ng"}, {}):
            said = refused(spark, log.address, **options)
            assert "NotAllowedError: no: not_authenticated" in said
            assert "wr0ng" not in said
        assert len(log.headers) == before + 2, "no second attempt"


class Web(BaseHTTPRequestHandler):
    """An ordinary web server that is no node."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (200, "PipelineError: the server sent no JSON object"),
        (404, "PipelineError: the server answered 404"),
        (403, "NotAllowedError: the server answered 403"),
        (502, "NotConnectedError: the server answered 502"),
    ],
)
def test_what_is_no_node_is_told(spark: Any, status: int, error: str) -> None:
    with HTTPServer(("127.0.0.1", 0), type("Handler", (Web,), {"status": status})) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            assert error in refused(spark, f"127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
            thread.join(5)


def test_a_nodes_other_port_is_told(spark: Any, node: Node) -> None:
    said = refused(spark, node.ready["redis"])
    assert "PipelineError: the server answered 400: This is HubSub's Redis port" in said
