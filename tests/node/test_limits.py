"""Each named limit of the data plane is reached by a test, which sees its refusal and its counter."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients.raw import Connection, Frame, encode
from clients.servers import Server, until

Start = Callable[..., Server]

CHAT: dict[str, Any] = {
    "name": "chat",
    "match": ["chat:*"],
    "history": {"messages": 1_000_000, "bytes": "1GiB"},
}

# Limit → the test that reaches it: here, in a file beside this one, or of the machines of links.
REACHED = {
    "connections_max": "test_one_client_too_many_is_told_so",
    "descriptors_reserved": "test_silent_connections_leave_the_log_its_files",
    "handshake_ms": "test_who_never_sends_a_whole_command_is_closed_and_who_did_may_stay",
    "frame_bytes_max": "test_a_frame_that_is_too_long_closes",
    "frame_args_max": "test_a_frame_of_too_many_arguments_closes",
    "inline_bytes_max": "test_an_inline_command_that_is_too_long_closes",
    "topic_bytes_max": "test_a_topic_that_is_too_long_is_refused",
    "traces_max": "test_one_trace_more_than_the_limit_is_refused_and_an_ended_one_makes_room",
    "pattern_bytes_max": "test_a_pattern_that_is_too_long_is_refused",
    "patterns_per_client_max": "test_one_pattern_too_many_of_a_client_is_refused",
    "patterns_max": "test_one_pattern_too_many_of_the_node_is_refused",
    "patterns_search_max": "test_patterns_that_search_too_much_are_refused",
    "patterns_bytes_max": "test_patterns_that_weigh_too_much_are_refused",
    "subscriptions_per_client_max": "test_one_subscription_too_many_is_refused",
    "subscription_bytes_per_client_max": "test_names_of_one_client_that_are_too_long_together_are_refused",
    "subscription_bytes_shard_max": "test_names_of_topics_that_are_too_long_together_are_refused",
    "groups_max": "test_one_group_too_many_is_refused",
    "phoenix_message_bytes_max": "test_a_message_that_is_too_long_closes",
    "phoenix_channels_max": "test_one_channel_too_many_is_refused",
    "phoenix_joins_per_second_max": "test_a_flood_of_joins_is_refused_and_harms_nobody_else",
    "phoenix_silence_ms": "test_a_page_that_is_silent_for_too_long_is_closed",
    "presence_members_max": "test_one_member_too_many_is_refused_until_another_has_left",
    "presence_listed_max": "test_members_beyond_those_that_are_listed_are_counted",
    "presence_member_bytes_max": "test_a_member_that_says_too_much_of_itself_is_refused",
    "publishers_shard_max": "test_one_publisher_too_many_is_not_counted",
    "longpoll_window_ms": "test_a_request_that_nothing_comes_for_is_answered_after_its_window",
    "longpoll_sessions_max": "test_one_session_of_long_polls_too_many_is_refused",
    "events_heartbeat_ms": "test_a_stream_that_has_nothing_to_say_says_that_it_is_there",
    "mqtt_packet_bytes_max": "test_a_packet_that_is_too_long_closes",
    "mqtt_large_bytes_max": "test_long_messages_under_way_are_bounded",
    "mqtt_connect_bytes_max": "test_a_connect_that_is_too_long_closes_without_a_word",
    "mqtt_receive_max": "test_one_message_unanswered_too_many_is_told_or_counted",
    "mqtt_inflight_max": "test_no_more_than_the_window_is_unacknowledged_and_the_rest_comes_in_order",
    "retained_messages_max": "test_one_retained_message_too_many_is_refused",
    "retained_bytes_max": "test_too_long_retained_messages_are_refused",
    "retained_page_bytes": "test_what_is_kept_is_read_page_by_page",
    "mqtt_topic_aliases_max": "test_a_topic_alias_stands_for_a_topic_both_ways",
    "mqtt_keep_alive_s_max": "test_the_longest_keep_alive_is_the_servers",
    "mqtt_sessions_max": "test_one_session_too_many_is_refused",
    "mqtt_session_expiry_s_max": "test_the_longest_that_a_session_stays_is_the_servers",
    "mqtt_session_expiry_s": "test_before_5_0_a_session_stays_as_long_as_the_server_says",
    "mqtt_session_queue_messages_max": "test_of_too_many_messages_for_an_absent_client_the_oldest_give_way",
    "mqtt_session_queue_bytes_max": "test_of_too_many_messages_for_an_absent_client_the_oldest_give_way",
    "mqtt_session_snapshot_ms": "test_what_was_acknowledged_so_long_before_a_kill_comes_no_more",
    "mqtt_takeover_ms": "a_node_that_says_nothing_is_not_waited_for_longer_than_its_time",
    "inflight_store_bytes_max": "what_is_too_much_is_refused_and_counted_and_one_request_has_always_room",
    "inflight_store_timeout_ms": "test_a_server_of_sessions_that_says_nothing_is_told_until_it_answers_again",
    "consumer_ack_ms": "test_what_is_not_acknowledged_in_its_time_is_another_members_and_then_dead",
    "consumer_tries_max": "test_what_is_not_acknowledged_in_its_time_is_another_members_and_then_dead",
    "consumer_window_records": "test_a_group_is_given_no_more_than_its_window_and_the_rest_when_it_acknowledges",
    "consumer_window_bytes": "a_group_is_given_no_more_than_its_window",
    "mqtt_lingering_max": "test_of_too_many_clients_that_were_told_their_end_the_oldest_are_closed",
    "mqtt_lingering_ms": "test_a_client_that_was_told_its_end_is_closed_after_its_time",
    "publishes_per_minute_max": "test_one_publish_too_many_in_a_minute_is_refused",
    "rooms_max": "test_one_room_too_many_is_refused",
    "room_names_bytes_max": "test_names_of_rooms_that_are_too_long_together_are_refused",
    "room_creations_per_second_max": "test_rooms_made_too_fast_are_refused",
    "pending_per_client_max": "test_a_client_with_too_many_requests_under_way_is_not_read",
    "mailbox_bytes_max": "test_a_shard_that_is_behind_holds_publishers_back_and_loses_nothing",
    "output_bytes_max": "test_disconnect_closes_the_slow_one_only_and_says_why",
    "output_soft_bytes": "test_above_the_soft_limit_for_its_time_is_as_slow_as_the_hard_one",
    "output_soft_ms": "test_above_the_soft_limit_for_its_time_is_as_slow_as_the_hard_one",
    "output_shard_bytes_max": "test_output_of_all_clients_of_a_shard_is_bounded",
    "reply_bytes_max": "test_a_client_that_reads_no_replies_is_not_read",
    "reply_shard_bytes_max": "test_who_leaves_most_replies_unread_is_closed_and_nobody_else",
    "input_shard_bytes_max": "test_who_has_most_unfinished_input_is_closed_and_nobody_else",
    "transaction_commands_max": "test_one_command_too_many_in_a_transaction_aborts_it",
    "transaction_bytes_max": "test_a_transaction_of_too_many_bytes_is_aborted",
    "history_reply_records_max": "test_a_history_reply_is_bounded_by_records_and_bytes",
    "listing_turn_names_max": "a_page_of_as_many_rooms_as_a_turn_passes_is_answered_in_it_and_one_more_is_not",
    "history_reply_bytes_max": "test_a_history_reply_is_bounded_by_records_and_bytes",
    "history_shard_bytes_max": "test_history_of_a_shard_is_bounded_oldest_first",
    "producer_window_records": "test_a_restart_knows_as_much_as_the_node_before",
    "producer_window_bytes": "test_a_restart_knows_as_much_as_the_node_before",
    "route_cache_topics_max": "test_remembered_routes_and_matches_are_bounded",
    "pattern_cache_topics_max": "test_remembered_routes_and_matches_are_bounded",
    "pool_bytes_max": "test_idle_buffers_are_bounded",
    "tcp_keepalive_ms": "test_a_silent_peer_is_probed_by_keepalive",
    "tcp_user_timeout_ms": "test_unacknowledged_bytes_bound_the_life_of_a_connection",
    "drain_ms": "test_a_stop_waits_no_longer_than_the_limit_for_who_does_not_read",
    "control_events_max": "lines_are_taken_after_events_and_take_no_places_of_theirs",
    "log_tail_bytes_max": "test_memory_keeps_so_many_bytes_and_the_disk_has_the_rest",
    "log_tail_idle_ms": "test_records_leave_memory_when_they_were_there_for_so_long_and_the_disk_has_them",
    "log_pending_bytes_max": "test_publishers_wait_while_so_much_waits_for_the_journal",
    "log_unwritten_bytes_max": "test_the_journal_waits_while_so_much_waits_for_the_segments",
    "log_journal_bytes": "test_a_journal_file_has_its_size_and_the_next_one_follows",
    "log_segment_bytes": "test_a_segment_is_sealed_at_its_length",
    "log_checkpoint_bytes": "test_so_many_bytes_make_a_checkpoint",
    "log_checkpoint_ms": "test_so_much_time_makes_a_checkpoint",
    "log_reserve_bytes": "test_below_its_reserve_the_disk_counts_as_full_and_reads_go_on",
    "log_streams_max": "test_one_stream_too_many_is_refused_until_another_has_ended",
    "log_stream_idle_ms": "test_a_stream_that_nobody_reads_is_closed_after_its_time_and_does_not_look_ended",
    "log_open_files_max": "test_so_many_segments_and_indexes_are_open_at_once",
    "link_handshake_ms": "test_who_says_nothing_is_refused_when_its_time_is_over",
    "link_heartbeat_ms": "test_a_peer_tells_its_status_its_clock_and_that_it_lives",
    "link_suspect_ms": "test_a_halted_peer_is_suspected_and_heard_again",
    "link_silence_ms": "test_a_peer_that_is_silent_for_long_is_down_and_comes_back",
    "link_live_window_bytes": "a_peer_that_handles_nothing_stops_its_lanes_and_no_other",
    "link_reads_window_bytes": "a_peer_that_handles_nothing_stops_its_lanes_and_no_other",
    "link_urgent_queue_bytes_max": "stalls_and_breaks_bring_no_frame_twice_none_out_of_order_and_none_without_credit",
    "link_live_queue_bytes_max": "a_peer_that_handles_nothing_stops_its_lanes_and_no_other",
    "link_reads_queue_bytes_max": "a_peer_that_handles_nothing_stops_its_lanes_and_no_other",
    "link_output_bytes_max": "stalls_and_breaks_bring_no_frame_twice_none_out_of_order_and_none_without_credit",
    "link_redial_ms_min": "waits_double_up_to_the_longest_and_differ_by_seed",
    "link_redial_ms_max": "test_dialing_a_closed_port_leaks_nothing",
    "link_stable_ms": "a_link_that_stood_begins_with_the_shortest_wait_and_one_that_flaps_does_not",
    "leader_lease_ms": "test_a_leader_that_is_cut_off_leads_until_its_deadline_and_no_longer",
    "leader_silence_ms": "test_a_controller_that_is_silent_is_not_heeded_and_the_lead_goes_on_among_the_others",
}


def test_every_limit_of_the_data_plane_is_reached_by_a_test() -> None:
    core = pytest.importorskip("hubsub._core")
    assert set(REACHED) == set(core.limits_default())
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))
    crates = Path(__file__).parents[2] / "crates"
    pure = (
        path
        for name in ("hubsub-node", "hubsub-route", "hubsub-wire")
        for path in (crates / name).rglob("*.rs")
    )
    defined |= {
        name for path in pure for name in re.findall(r"^ *fn (\w+)\(\) \{", path.read_text(), re.MULTILINE)
    }
    assert set(REACHED.values()) <= defined


NO_HINT = ("ERR the list is longer than reply_bytes_max", "ERR too many channels, at most", "EXECABORT ")
"""Errors that name their setting themselves, of fixed limits, and of Redis."""


def closed_with(connection: Connection, text: str) -> None:
    """Asserts that the server sends one error and closes."""
    assert connection.read_to_end() == [Frame("-", text.encode())]


def refused(reply: Frame, text: str) -> None:
    """Asserts that the reply is that error, with the settings of the limit as a hint."""
    words, _, hint = bytes(reply.value).partition(b"; hint: ")  # type: ignore[arg-type]
    assert (reply.kind, words) == ("-", text.encode())
    assert hint or text.startswith(NO_HINT), text


# --- frames


def test_a_frame_that_is_too_long_closes(start: Start) -> None:
    server = start(limits={"frame_bytes_max": 2000})
    with server.connect() as connection:
        assert connection.ask("ECHO", "x" * 1900) == b"x" * 1900
        connection.command("PUBLISH", "c", "x" * 2000)
        closed_with(connection, "ERR Protocol error: invalid bulk length")
    assert server.metric("protocol_errors_total") == 1


def test_a_frame_of_too_many_arguments_closes(start: Start) -> None:
    server = start(limits={"frame_args_max": 10})
    with server.connect() as connection:
        connection.command("SUBSCRIBE", *"abcdefghi")
        connection.read_many(9)
        connection.send(b"*11\r\n")
        closed_with(connection, "ERR Protocol error: invalid multibulk length")
    assert server.metric("protocol_errors_total") == 1


def test_an_inline_command_that_is_too_long_closes(start: Start) -> None:
    server = start(limits={"inline_bytes_max": 100})
    with server.connect() as connection:
        connection.send(b"ECHO " + b"x" * 80 + b"\r\n")
        assert connection.read().plain() == b"x" * 80
        connection.send(b"ECHO " + b"x" * 200)
        closed_with(connection, "ERR Protocol error: too big inline request")
    assert server.metric("protocol_errors_total") == 1


# --- names, subscriptions, publishes


def test_a_topic_that_is_too_long_is_refused(start: Start) -> None:
    server = start(2, limits={"topic_bytes_max": 100})
    error = "ERR topic length is out of range"
    with server.connect(3) as connection:
        assert connection.ask("PUBLISH", "x" * 100, "y") == 0
        refused(connection.call("PUBLISH", "x" * 101, "y"), error)
        refused(connection.call("SPUBLISH", "x" * 101, "y"), error)
        refused(connection.call("SUBSCRIBE", "x" * 101), error)
        refused(connection.call("SSUBSCRIBE", "x" * 101), error)
        refused(connection.call("HUBSUB", "SUBSCRIBE", "x" * 101, "LAST", 1), error)
        assert connection.ask("SUBSCRIBE", "x" * 100) == [b"subscribe", b"x" * 100, 1]
    assert server.metric("publishes_refused_total") == 2
    assert server.metric("subscriptions_refused_total") == 3


def test_the_longest_topic_of_all_works(start: Start) -> None:
    topic = b"t" * 65_535
    with start(2).connect(3) as connection:
        assert connection.ask("SUBSCRIBE", topic) == [b"subscribe", topic, 1]
        refused(connection.call("SUBSCRIBE", topic + b"t"), "ERR topic length is out of range")
        connection.command("PUBLISH", topic, "x")
        assert sorted(f.kind for f in connection.read_many(2)) == [":", ">"]


def test_a_pattern_that_is_too_long_is_refused(start: Start) -> None:
    server = start(2, limits={"pattern_bytes_max": 20})
    with server.connect(3) as connection:
        assert connection.ask("PSUBSCRIBE", "x" * 19 + "*") == [b"psubscribe", b"x" * 19 + b"*", 1]
        assert connection.ask("PSUBSCRIBE", "x" * 18 + "*") == [b"psubscribe", b"x" * 18 + b"*", 2]
        refused(connection.call("PSUBSCRIBE", "x" * 21), "ERR pattern length is out of range")
        refused(connection.call("PUBSUB", "CHANNELS", "x" * 21), "ERR pattern length is out of range")
        assert connection.ask("PUBSUB", "NUMPAT") == 2
    assert server.metric("subscriptions_refused_total") == 1


def test_one_pattern_too_many_of_a_client_is_refused(start: Start) -> None:
    server = start(2, limits={"patterns_per_client_max": 2})
    with server.connect() as connection, server.connect() as other:
        connection.ask("PSUBSCRIBE", "a*")
        assert connection.ask("PSUBSCRIBE", "b*") == [b"psubscribe", b"b*", 2]
        refused(connection.call("PSUBSCRIBE", "c*"), "ERR max number of subscriptions of this client reached")
        assert connection.ask("PSUBSCRIBE", "a*") == [b"psubscribe", b"a*", 2], "it is there already"
        assert connection.ask("SUBSCRIBE", "c") == [b"subscribe", b"c", 3], "topics do not count"
        connection.ask("PUNSUBSCRIBE", "a*")
        assert connection.ask("PSUBSCRIBE", "c*") == [b"psubscribe", b"c*", 3]
        assert other.ask("PSUBSCRIBE", "a*") == [b"psubscribe", b"a*", 1]
    assert server.metric("subscriptions_refused_total") == 1


def test_one_pattern_too_many_of_the_node_is_refused(start: Start) -> None:
    server = start(2, limits={"patterns_max": 2})
    error = "ERR max number, bytes or work of patterns reached"
    with server.connect() as connection, server.connect() as other:
        connection.ask("PSUBSCRIBE", "a*")
        connection.ask("PSUBSCRIBE", "b*")
        refused(other.call("PSUBSCRIBE", "c*"), error)
        assert other.ask("PSUBSCRIBE", "a*") == [b"psubscribe", b"a*", 1], "one that is there may have more"
        connection.ask("PUNSUBSCRIBE", "b*")
        until(lambda: server.metric("patterns") == 2, "all shards have one less")
        assert other.ask("PSUBSCRIBE", "c*") == [b"psubscribe", b"c*", 2]
        refused(connection.call("PSUBSCRIBE", "b*"), error)
    assert server.metric("subscriptions_refused_total") == 2


def test_patterns_that_search_too_much_are_refused(start: Start) -> None:
    server = start(2, limits={"patterns_search_max": 4})
    error = "ERR max number, bytes or work of patterns reached"
    with server.connect() as connection:
        connection.ask("PSUBSCRIBE", "*a*")
        refused(connection.call("PSUBSCRIBE", "*a???*"), error)
        connection.ask("PSUBSCRIBE", "*a??*")
        refused(connection.call("PSUBSCRIBE", "*b*"), error)
        for free in ("b*", "*b", "?b*c?", "b"):
            assert connection.ask("PSUBSCRIBE", free)[0] == b"psubscribe"
        until(lambda: server.metric("patterns_search") == 2 * 4, "both shards have all of it")
        connection.ask("PUNSUBSCRIBE", "*a*")
        assert connection.ask("PSUBSCRIBE", "*b*")[0] == b"psubscribe"
    assert server.metric("subscriptions_refused_total") == 2


def test_patterns_that_weigh_too_much_are_refused(start: Start) -> None:
    server = start(2, limits={"patterns_bytes_max": 20_000})
    with server.connect() as connection:
        wanted = [f"{number}" + "?*" * 500 for number in range(9)]
        answers = [connection.call("PSUBSCRIBE", pattern) for pattern in wanted]
        kept = sum(not isinstance(answer, Exception) and answer.kind != "-" for answer in answers)
        assert 2 <= kept <= 4
        refused(answers[-1], "ERR max number, bytes or work of patterns reached")
        until(lambda: 40_000 <= server.metric("patterns_bytes") <= 60_000, "both shards have all of them")
        connection.ask("PUNSUBSCRIBE", wanted[0])
        connection.ask("PUNSUBSCRIBE", wanted[1])
        assert connection.ask("PSUBSCRIBE", "a*")[0] == b"psubscribe"


def test_one_subscription_too_many_is_refused(start: Start) -> None:
    server = start(2, limits={"subscriptions_per_client_max": 3})
    error = "ERR max number of subscriptions of this client reached"
    with server.connect() as connection, server.connect() as other:
        connection.ask("SUBSCRIBE", "a")
        connection.ask("PSUBSCRIBE", "b*")
        connection.ask("SSUBSCRIBE", "c")
        for verb in ("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"):
            refused(connection.call(verb, "d"), error)
        assert connection.ask("SUBSCRIBE", "a") == [b"subscribe", b"a", 2], "it is there already"
        connection.ask("UNSUBSCRIBE", "a")
        assert connection.ask("SUBSCRIBE", "d") == [b"subscribe", b"d", 2]
        assert other.ask("PUBSUB", "NUMSUB", "a", "d") == [b"a", 0, b"d", 1]
    assert server.metric("subscriptions_refused_total") == 3


@pytest.mark.parametrize("keeps", [False, True], ids=["memory", "disk"])
def test_names_of_one_client_that_are_too_long_together_are_refused(
    start: Start, data: Path, keeps: bool
) -> None:
    config = {"data": str(data)} if keeps else {}
    server = start(2, config=config, limits={"subscription_bytes_per_client_max": 100})
    error = "ERR max bytes of names of subscriptions reached"
    a, b, c = "a" * 60, "b" * 40, "c" * 41
    with server.connect() as connection, server.connect() as other, server.connect() as third:
        assert connection.ask("SUBSCRIBE", a) == [b"subscribe", a.encode(), 1]
        refused(connection.call("SUBSCRIBE", c), error)
        assert connection.ask("SSUBSCRIBE", b) == [b"ssubscribe", b.encode(), 1], "all that it may have"
        refused(connection.call("SUBSCRIBE", "d"), error)
        assert connection.ask("SUBSCRIBE", a) == [b"subscribe", a.encode(), 1], "it is there already"
        assert other.ask("SUBSCRIBE", c) == [b"subscribe", c.encode(), 1], "each has its own"
        connection.ask("SUNSUBSCRIBE", b)
        connection.ask("UNSUBSCRIBE", a)
        assert connection.ask("SUBSCRIBE", "d" * 100)[0] == b"subscribe"
        refused(connection.call("SUBSCRIBE", "e"), error)
        assert third.ask("PUBSUB", "NUMSUB", a, c) == [a.encode(), 0, c.encode(), 1]
    assert server.metric("subscriptions_refused_total") == 3


def test_names_of_topics_that_are_too_long_together_are_refused(start: Start) -> None:
    server = start(1, limits={"subscription_bytes_shard_max": 100})
    error = "ERR max bytes of names of subscriptions reached"
    a, b = "a" * 60, "b" * 41
    with server.connect() as second:
        with server.connect() as first:
            first.ask("SUBSCRIBE", a)
            assert second.ask("SUBSCRIBE", a) == [b"subscribe", a.encode(), 1], "it counts once"
            refused(second.call("SUBSCRIBE", b), error)
            assert second.ask("SUBSCRIBE", b[:40]) == [b"subscribe", b[:40].encode(), 2], (
                "all that there may be"
            )
            refused(first.call("SUBSCRIBE", "c"), error)
            second.ask("UNSUBSCRIBE", a)
            refused(second.call("SUBSCRIBE", "c"), error)
        until(lambda: server.metric("connections") == 1)
        assert second.ask("SUBSCRIBE", a) == [b"subscribe", a.encode(), 2]


def test_one_publish_too_many_in_a_minute_is_refused(start: Start) -> None:
    server = start(limits={"publishes_per_minute_max": 5})
    with server.connect() as connection, server.connect() as other:
        assert [connection.ask("PUBLISH", "c", n) for n in range(5)] == [0] * 5
        refused(connection.call("PUBLISH", "c", "x"), "ERR max publishes per minute reached")
        refused(connection.call("SPUBLISH", "c", "x"), "ERR max publishes per minute reached")
        connection.ask("MULTI")
        connection.ask("PUBLISH", "c", "x")
        reply = connection.call("EXEC")
        told = b"ERR max publishes per minute reached; hint: publishes_per_minute_max"
        assert reply.value == (Frame("-", told),)
        assert other.ask("PUBLISH", "c", "x") == 0, "each client for itself"
    assert server.metric("publishes_refused_total") == 3


def test_a_payload_longer_than_its_class_allows_is_refused(start: Start) -> None:
    server = start(2, classes=[CHAT | {"payload_bytes_max": 100}])
    with server.connect() as connection:
        assert connection.ask("PUBLISH", "chat:a", "x" * 100) == 0
        refused(connection.call("PUBLISH", "chat:a", "x" * 101), "ERR payload is longer than its room allows")
        assert connection.ask("PUBLISH", "plain", "x" * 101) == 0
    assert server.metric("publishes_refused_total") == 1


# --- rooms


def test_one_room_too_many_is_refused(start: Start) -> None:
    server = start(limits={"rooms_max": 3}, classes=[CHAT])
    error = "ERR max number of rooms reached"
    with server.connect(3) as connection:
        for topic in "abc":
            connection.ask("SUBSCRIBE", topic)
        refused(connection.call("SUBSCRIBE", "d"), error)
        refused(connection.call("PUBLISH", "chat:a", "x"), error)
        assert connection.ask("PUBLISH", "d", "x") == 0, "no room is needed where nothing is kept"
        connection.ask("UNSUBSCRIBE", "a")
        assert connection.ask("SUBSCRIBE", "d") == [b"subscribe", b"d", 3]
    until(lambda: server.metric("rooms_refused_total") == 2)


def test_names_of_rooms_that_are_too_long_together_are_refused(start: Start) -> None:
    server = start(1, limits={"room_names_bytes_max": 20}, classes=[CHAT])
    error = "ERR max number of rooms reached"
    with server.connect() as connection:
        assert connection.ask("PUBLISH", "chat:a", "x") == 0
        refused(connection.call("SUBSCRIBE", "b" * 15), error)
        assert connection.ask("SUBSCRIBE", "b" * 14) == [b"subscribe", b"b" * 14, 1], "all that there may be"
    with server.connect() as connection:
        refused(connection.call("PUBLISH", "chat:" + "c" * 10, "x"), error)
        until(lambda: connection.call("PUBLISH", "chat:" + "c" * 9, "x").kind == ":", "the other has left")
    until(lambda: server.metric("rooms_refused_total") >= 2)


def test_rooms_made_too_fast_are_refused(start: Start) -> None:
    server = start(limits={"room_creations_per_second_max": 10}, classes=[CHAT])
    with server.connect() as connection:
        for n in range(1000):
            connection.command("PUBLISH", f"chat:{n}", "x")
        replies = connection.read_many(1000)
        made = [n for n, reply in enumerate(replies) if reply.kind == ":"]
        told = b"ERR too many new rooms, try again later; hint: room_creations_per_second_max"
        assert set(replies) == {Frame(":", b"0"), Frame("-", told)}
        assert connection.ask("PUBLISH", f"chat:{made[0]}", "x") == 0, "a room that is there is served"
    until(lambda: server.metric("rooms") == len(made))
    until(lambda: server.metric("rooms_refused_total") == 1000 - len(made))


# --- what waits


def test_a_client_with_too_many_requests_under_way_is_not_read(start: Start) -> None:
    late = {"name": "late", "match": ["late:*"], "commit_delay_ms": 200}
    server = start(limits={"pending_per_client_max": 4}, classes=[late])
    with server.connect() as connection, server.connect() as subscriber:
        subscriber.ask("SUBSCRIBE", "late:a")
        connection.send(b"".join(encode("PUBLISH", "late:a", n) for n in range(12)))
        assert [f.plain() for f in connection.read_many(12)] == [1] * 12
        got = [f.plain()[2] for f in subscriber.read_many(12)]  # type: ignore[index]
        assert got == [b"%d" % n for n in range(12)]
    assert server.metric("pauses_total") >= 1


def test_a_shard_that_is_behind_holds_publishers_back_and_loses_nothing(start: Start) -> None:
    limits = {"mailbox_bytes_max": 16 * 1024}
    server = start(3, limits=limits, classes=[CHAT | {"on_slow": "catch-up"}])
    subscribers = [server.connect(3) for _ in range(6)]
    for subscriber in subscribers:
        subscriber.ask("PSUBSCRIBE", "chat:*")
    publishers = [server.connect() for _ in range(6)]
    for publisher in publishers:
        publisher.send(
            b"".join(encode("PUBLISH", f"chat:{n % 9}", b"%d " % n + b"." * 900) for n in range(2000))
        )
    for publisher in publishers:
        assert {f.plain() for f in publisher.read_many(2000)} == {6}
    for subscriber in subscribers:
        assert len(subscriber.read_many(12_000)) == 12_000
    until(lambda: server.metric("mailbox_bytes") == 0)
    until(lambda: server.metric("stalled") == 0)


def test_a_client_that_reads_no_replies_is_not_read(start: Start) -> None:
    server = start(limits={"reply_bytes_max": 64 * 1024})
    count, payload = 40_000, b"x" * 1000
    with server.connect(receive_bytes=4096) as connection:
        commands = encode("ECHO", payload) * 100
        sender = threading.Thread(target=connection.send, args=(commands * (count // 100),))
        sender.start()
        until(lambda: server.metric("pauses_total") >= 1)
        assert server.metric("output_bytes") <= 2 * 64 * 1024 + 100 * len(commands)
        for _ in range(count):
            assert connection.read().value == payload
        sender.join()


def test_a_list_that_is_longer_than_what_may_be_unread_is_refused(start: Start) -> None:
    error = "ERR the list is longer than reply_bytes_max; ask for a part of it, or the HTTP API for pages"
    names = [f"{number:0>50}" for number in range(73)]
    # The list of 72: `*72`, and of each name its length and itself.
    server = start(2, limits={"reply_bytes_max": 5 + 72 * 57})
    with server.connect() as subscriber, server.connect() as client:
        for name in names[:72]:
            subscriber.ask("SUBSCRIBE", name)
        assert sorted(client.ask("PUBSUB", "CHANNELS")) == [name.encode() for name in names[:72]]
        subscriber.ask("SUBSCRIBE", names[72])
        refused(client.call("PUBSUB", "CHANNELS"), error)
        assert len(client.ask("PUBSUB", "CHANNELS", "*1")) == 8
        # Counts are a row of name and number: 61 bytes each.
        asked = ["x" * 50] * 67
        assert client.ask("PUBSUB", "NUMSUB", *asked) == [b"x" * 50, 0] * 67
        refused(client.call("PUBSUB", "NUMSUB", *asked, "x" * 50), error)
        assert server.metric("listings_refused_total") >= 2
        # About as much as 16 clients.
        more = [server.connect() for _ in range(16)]
        assert [other.ask("PING") for other in more] == [b"PONG"] * 16, "each is there"
        refused(client.call("CLIENT", "LIST"), error)
        assert b"cmd=client|list" in client.ask("CLIENT", "LIST", "ID", client.ask("CLIENT", "ID"))
        for other in more:
            other.close()


def test_so_many_channels_may_be_asked_about_at_once(start: Start) -> None:
    server = start(2)
    with server.connect() as client:
        most = ["x"] * 65_536
        assert client.ask("PUBSUB", "NUMSUB", *most) == [b"x", 0] * 65_536
        for command in ("NUMSUB", "SHARDNUMSUB"):
            refused(client.call("PUBSUB", command, *most, "x"), "ERR too many channels, at most 65536")


# --- transactions


def test_one_command_too_many_in_a_transaction_aborts_it(start: Start) -> None:
    server = start(limits={"transaction_commands_max": 3})
    with server.connect() as connection:
        connection.ask("MULTI")
        assert [connection.ask("ECHO", n) for n in range(3)] == [b"QUEUED"] * 3
        assert connection.call("ECHO", "x").kind == "-"
        refused(connection.call("EXEC"), "EXECABORT Transaction discarded because of previous errors.")
        assert connection.ask("PING") == b"PONG"


def test_a_transaction_of_too_many_bytes_is_aborted(start: Start) -> None:
    server = start(limits={"transaction_bytes_max": 2000})
    with server.connect() as connection:
        connection.ask("MULTI")
        assert connection.ask("PUBLISH", "c", "x" * 900) == b"QUEUED"
        replies = [connection.call("PUBLISH", "c", "x" * 900).kind for _ in range(3)]
        assert "-" in replies
        refused(connection.call("EXEC"), "EXECABORT Transaction discarded because of previous errors.")


# --- history


def test_a_history_reply_is_bounded_by_records_and_bytes(start: Start) -> None:
    limits = {"history_reply_records_max": 50, "history_reply_bytes_max": 10_000}
    server = start(2, limits=limits, classes=[CHAT])
    with server.connect() as connection:
        for n in range(200):
            connection.ask("PUBLISH", "chat:small", n)
            connection.ask("PUBLISH", "chat:large", b"%d" % n + b"." * 996)
        small, large = (
            connection.ask("HUBSUB", "HISTORY", f"chat:{s}", "COUNT", 200) for s in ("small", "large")
        )
        assert isinstance(small, list) and isinstance(large, list)
        assert [row[4] for row in small] == [b"%d" % n for n in range(150, 200)]
        assert 0 < len(large) <= 10
        assert [row[4].rstrip(b".") for row in large] == [b"%d" % n for n in range(200 - len(large), 200)]


def test_history_of_a_shard_is_bounded_oldest_first(start: Start) -> None:
    server = start(limits={"history_shard_bytes_max": 200_000}, classes=[CHAT])
    with server.connect() as connection:
        for n in range(1000):
            connection.ask("PUBLISH", f"chat:{n % 10}", b"%d" % n + b"." * 996)
        kept = []
        for room in range(10):
            rows = connection.ask("HUBSUB", "HISTORY", f"chat:{room}", "COUNT", 1000)
            assert isinstance(rows, list)
            kept += [int(row[4].rstrip(b".")) for row in rows]
    assert sorted(kept) == list(range(1000 - len(kept), 1000)) and 100 < len(kept) < 200
    until(lambda: server.metric("history_records") == len(kept))
    until(lambda: server.metric("history_expired_total") == 1000 - len(kept))
    assert 100_000 < server.metric("history_bytes") <= 200_000


# --- caches and pools


def test_remembered_routes_and_matches_are_bounded(start: Start) -> None:
    server = start(2, limits={"route_cache_topics_max": 100, "pattern_cache_topics_max": 100})
    with server.connect() as subscriber, server.connect() as connection:
        subscriber.ask("PSUBSCRIBE", "t9*")
        for n in range(10_000):
            connection.command("PUBLISH", f"t{n}", "x")
        counts = [f.plain() for f in connection.read_many(10_000)]
        assert counts == [int(str(n).startswith("9")) for n in range(10_000)]
    assert server.metric("topics") <= 2 * 100


def test_idle_buffers_are_bounded(start: Start) -> None:
    server = start(limits={"pool_bytes_max": 1 << 20})
    connections = [server.connect() for _ in range(100)]
    for connection in connections:
        connection.command("ECHO", b"x" * 200_000)
    for connection in connections:
        connection.read()
    assert server.metric("pool_bytes") <= 1 << 20
    for connection in connections:
        connection.close()


# --- peers, and the control plane


def test_unacknowledged_bytes_bound_the_life_of_a_connection(start: Start) -> None:
    """A peer whose window stays shut counts as dead after the limit; one that reads does not."""
    classes = [{"name": "all", "match": ["c"], "on_slow": "drop-oldest"}]
    server = start(limits={"tcp_user_timeout_ms": 500, "output_bytes_max": 65_536}, classes=classes)
    with server.connect(receive_bytes=4096) as dead, server.connect() as alive, server.connect() as publisher:
        dead.ask("SUBSCRIBE", "c")
        alive.ask("SUBSCRIBE", "c")
        payload = b"x" * 10_000

        def only_one_is_left() -> bool:
            count = publisher.ask("PUBLISH", "c", payload)
            assert alive.read().plain() == [b"message", b"c", payload]
            return count == 1

        until(only_one_is_left)


def test_a_stop_waits_no_longer_than_the_limit_for_who_does_not_read(start: Start) -> None:
    server = start(limits={"drain_ms": 200})
    with server.connect(receive_bytes=4096) as stalled, server.connect() as publisher:
        stalled.ask("SUBSCRIBE", "c")
        for _ in range(100):
            publisher.ask("PUBLISH", "c", b"x" * 100_000)
        assert server.node
        assert server.node.stop() == 0
