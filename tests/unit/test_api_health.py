"""The REST API about the node itself: health, readiness, hubs, metrics, and the addresses that it reaches."""

import socket

import pytest

pytest.importorskip("hubsub._core", reason="needs hubsub-core")


from .played_node import Api, fits, hub_row, played_log


async def test_health_follows_the_node() -> None:
    api = Api()
    assert (await api.get("/s/ping")).text == "pong"
    assert [(await api.get(path)).status for path in ("/livez", "/readyz")] == [200, 200]
    api.state.stopping = True
    assert [(await api.get(path)).status for path in ("/livez", "/readyz")] == [200, 503]


async def test_ready_and_metrics_say_that_the_store_of_sessions_is_away() -> None:
    api = Api()
    figures = {"requests_total": 3, "batch_ns_total": 2_000_000_000}
    for state, reason in (("away", "no route"), ("open", None)):
        api.node.played_store = {"state": state, "reason": reason, "figures": figures}
        answer = await api.get("/readyz")
        assert (answer.status, len(answer.json["reasons"])) == (200, int(state == "away"))
        assert all("no route" in told for told in answer.json["reasons"])
        fits(answer, "/readyz")
        rows = (await api.get("/metrics")).text.splitlines()
        assert f"hubsub_inflight_store_up {int(state == 'open')}" in rows
        assert "hubsub_inflight_store_requests_total 3" in rows
        assert "hubsub_inflight_store_batch_seconds_total 2.0" in rows


async def test_ready_says_what_the_log_refuses_and_which_hubs_are_quarantined() -> None:
    api = Api()
    answer = await api.get("/readyz")
    assert answer.json == {"status": "ready", "log": "none", "reasons": []}
    fits(answer, "/readyz")
    api.node.played_log = played_log(hub_row(1), state="full", reason="the disk is full")
    answer = await api.get("/readyz")
    assert (answer.status, answer.json["log"]) == (200, "full"), "what it has is still served"
    assert "the disk is full" in answer.json["reasons"][0]
    fits(answer, "/readyz")
    api.node.played_log = played_log(hub_row(1), hub_row(2, state="quarantined", reason="byte 7"))
    answer = await api.get("/readyz")
    assert (answer.status, answer.json["log"]) == (200, "open"), "the other hubs are served"
    assert answer.json["reasons"] == ["hub chat-1 is quarantined: byte 7"]

    api.node.played_log = played_log(hub_row(1, state="full", reason="full", damaged="byte 9"), state="full")
    answer = await api.get("/readyz")
    assert (answer.status, answer.json["reasons"][1]) == (200, "hub chat-0 is damaged: byte 9")


async def test_a_node_whose_log_has_failed_is_not_ready_and_says_why() -> None:
    api = Api()
    lost = hub_row(2, state="quarantined", reason="byte 7")
    api.node.played_log = played_log(lost, state="failed", reason="cannot sync the journal: EIO")
    answer = await api.get("/readyz")
    assert (answer.status, answer.json["code"]) == (503, "log_failed")
    assert "cannot sync the journal: EIO; hub chat-1 is quarantined: byte 7" in answer.json["message"]
    fits(answer, "/readyz")
    assert (await api.get("/livez")).status == 200


async def test_hubs_are_listed_page_by_page_and_shown_by_name_or_id() -> None:
    api, ids, target = Api(), [], "/v1/hubs?limit=100"
    assert (await api.get("/v1/hubs")).json == {"hubs": [], "next": None}
    api.node.played_log = played_log(*(hub_row(n) for n in range(1, 251)), hub_row(300, **{"class": "x"}))
    while target:
        page = await api.get(target)
        fits(page, "/v1/hubs")
        ids += [hub["id"] for hub in page.json["hubs"]]
        target = page.json["next"] and f"/v1/hubs?limit=100&after={page.json['next']}"
    assert ids == [*range(1, 251), 300]
    assert [hub["id"] for hub in (await api.get("/v1/hubs?class=x")).json["hubs"]] == [300]
    assert (await api.get("/v1/hubs?class=default")).json == {"hubs": [], "next": None}
    unknown = await api.get("/v1/hubs?class=nope")
    fits(unknown, "/v1/hubs")
    assert (unknown.status, unknown.json["code"]) == (404, "no_such_class")
    assert unknown.json["hint"] == "the classes are default, chat, x"
    assert (await api.get("/v1/hubs?limit=251")).json["next"] is None, "the last page has no next"
    for name in ("chat-6", "7"):
        shown = await api.get(f"/v1/hubs/{name}")
        fits(shown, "/v1/hubs/{hub}")
        assert (shown.json["name"], shown.json["id"], shown.json["leader"]) == ("chat-6", 7, "one")
        assert shown.json["last_timestamp_us"] == 2_500_000
    for name in ("chat-250", "chat", "0", "%FF"):
        gone = await api.get(f"/v1/hubs/{name}")
        assert (gone.status, gone.json["code"]) == (404, "no_such_hub")
    for query in ("after=x", "after=-1", "limit=0"):
        assert (await api.get(f"/v1/hubs?{query}")).status == 400


async def test_a_quarantined_hub_is_listed_with_its_reason_and_without_what_is_not_known() -> None:
    api = Api()
    api.node.played_log = played_log(
        hub_row(1, state="quarantined", reason="byte 7", first_timestamp_us=None, last_timestamp_us=None)
    )
    (hub,) = (await api.get("/v1/hubs")).json["hubs"]
    assert (hub["state"], hub["reason"], hub["rooms"]) == ("quarantined", "byte 7", None)
    assert hub["first_timestamp_us"] is None and hub["last_timestamp_us"] is None
    fits(await api.get("/v1/hubs/chat-0"), "/v1/hubs/{hub}")


async def test_metrics_of_the_log_have_a_histogram_of_syncs_and_each_hub() -> None:
    api = Api()
    assert "hubsub_log" not in (await api.get("/metrics")).text
    api.node.played_log = played_log(hub_row(1), hub_row(2, state="quarantined", reason="x"), state="full")
    lines = (await api.get("/metrics")).text.splitlines()
    for line in (
        "# TYPE hubsub_log_sync_seconds histogram",
        'hubsub_log_sync_seconds_bucket{le="0.0001"} 0',
        'hubsub_log_sync_seconds_bucket{le="0.001"} 3',
        'hubsub_log_sync_seconds_bucket{le="+Inf"} 4',
        "hubsub_log_sync_seconds_sum 0.003",
        "hubsub_log_sync_seconds_count 4",
        "hubsub_log_records_total 40",
        "hubsub_log_reads_waiting 2",
        'hubsub_log_state{state="full"} 1',
        'hubsub_log_state{state="failed"} 0',
        'hubsub_hub_bytes{hub="chat-0",class="chat"} 3',
        'hubsub_hub_quarantined{hub="chat-1",class="chat"} 1',
    ):
        assert line in lines, line
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(families)) == len(families)


async def test_metrics_are_prometheus_text_with_bounded_labels() -> None:
    api = Api()
    await api.get("/v1/rooms/some-room")
    await api.get("/no/such/path/some-room")
    text = (await api.get("/metrics")).text
    assert 'hubsub_shard_socket_seconds_total{shard="1"} 2.0' in text
    assert "# TYPE hubsub_shard_connections gauge" in text and "# TYPE hubsub_x_total counter" in text
    assert 'hubsub_http_requests_total{route="/v1/rooms/{room}",status="404"} 1' in text
    assert "some-room" not in text
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(set(families)) == len(families)


async def test_metrics_of_peers_are_those_of_all_their_links_together() -> None:
    lanes = {"urgent": 1, "live": 20, "reads": 0}
    counts = {"frames_in": 5, "bytes_in": 50, "bytes_out": 60, "dropped_bytes": 0, "suspicions": 1}
    never = {
        "state": "waiting",
        "heard_ms": None,
        "round_trip_us": None,
        "offset_us": None,
        "offset_error_us": None,
    }
    known = {
        "state": "up",
        "heard_ms": 30.0,
        "round_trip_us": 400,
        "offset_us": -2_000,
        "offset_error_us": 200,
    }
    more = {**counts, "sent": lanes, "sent_bytes": lanes, "refused": lanes}
    api = Api()
    api.node.peers = [
        {"node": "b", "links": [{**never, **more}, {**known, **more}]},
        {"node": "c", "links": [{**never, **more}]},
    ]
    lines = (await api.get("/metrics")).text.splitlines()
    for line in (
        'hubsub_peer_links{peer="b"} 2',
        'hubsub_peer_links_now{peer="b",state="up"} 1',
        'hubsub_peer_bytes_in_total{peer="b"} 100',
        'hubsub_peer_sent_total{peer="b",lane="live"} 40',
        'hubsub_peer_silence_seconds{peer="b"} 0.03',
        'hubsub_peer_round_trip_seconds{peer="b"} 0.0004',
        'hubsub_peer_clock_offset_seconds{peer="b"} -0.002',
    ):
        assert line in lines, line
    assert not [line for line in lines if 'round_trip_seconds{peer="c"}' in line]


async def test_a_node_tells_which_addresses_of_the_others_it_reaches() -> None:
    api = Api()
    with socket.create_server(("127.0.0.1", 0)) as listens, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # Bound, but not listening.
        here, gone = (f"127.0.0.1:{one.getsockname()[1]}" for one in (listens, bound))
        api.state.cluster = Seen({"b": {"redis": here, "link": gone}, "c": {"http": gone}})  # type: ignore[assignment]
        answer = await api.get("/v1/cluster/reached")
    fits(answer, "/v1/cluster/reached")
    b, c = answer.json["addresses"]
    assert b == {"node": "b", "listener": "redis", "address": here, "problem": None}
    assert (c["node"], c["listener"], c["address"]) == ("c", "http", gone) and c[
        "problem"
    ] == "nobody listens"


class Seen:
    """A cluster of this node and others, of which only the addresses are given."""

    def __init__(self, others: dict[str, dict[str, str]]) -> None:
        self.others = others

    def status(self) -> dict[str, object]:
        here = {"one": {"redis": "127.0.0.1:1"}}
        common = {"state": "up", "incarnation": 1, "since_ms": 0, "roles": [], "zone": "", "capacity": 1.0}
        nodes = [
            {"name": name, "addresses": has, "version": "", "hubs_led": 0, **common}
            for name, has in (here | self.others).items()
        ]
        coordinator = {"kind": "embedded", "failed": None, "heard_ago_s": 0.0}
        empty = {
            "hubs": [],
            "classes": {},
            "rooms_with_record": 0,
            "rooms_waiting": 0,
            "moves": [],
            "wrong": [],
        }
        view = {"cluster": "x", "node": "one", "incarnation": 1, "controller": None, "controller_term": None}
        return view | {"voters": None, "coordinator": coordinator, "nodes": nodes} | empty
