//! Requests of the control plane need the same permissions as a client's commands.

use crate::support::TestNode;
use hubsub_node::questions::{Call, ClientFilter, Item, Part, Question};
use hubsub_node::{Event, ShardEvent};
use hubsub_route::rooms::HistoryQuery;
use hubsub_types::{ErrorCode, Limits, PrincipalId};

const STRANGER: PrincipalId = PrincipalId(1);

fn publish() -> Call {
    let (topic, payload) = (b"t".to_vec(), b"x".to_vec());
    Call::Publish(vec![Item { topic, payload, headers: None, publisher: String::new(), producer: None }])
}

fn calls() -> Vec<Call> {
    let room = || b"t".to_vec();
    let query = HistoryQuery { room: room(), count: 1, after: None, topic: None };
    vec![
        Call::All(Question::Clients(ClientFilter::default(), u64::MAX)),
        Call::All(Question::KillClients(ClientFilter::default(), "test".to_owned())),
        Call::All(Question::Rooms(None, None, 10)),
        Call::All(Question::Busiest(10)),
        Call::All(Question::Sessions(None, None, 10)),
        Call::All(Question::EndSession("c".to_owned())),
        Call::Room(room(), Question::Room(room(), true)),
        Call::Room(room(), Question::DeleteRoom(room())),
        Call::Room(room(), Question::History(query)),
    ]
}

fn is_refused(answer: &Event) -> bool {
    match answer {
        Event::Shard(ShardEvent::Parts(_, parts)) => {
            matches!(parts[..], [Part::Refused(ErrorCode::NotAllowed)])
        }
        Event::Shard(ShardEvent::Published(_, outcomes)) => {
            matches!(outcomes[..], [Err(ErrorCode::NotAllowed)])
        }
        other => panic!("no answer: {other:?}"),
    }
}

#[test]
fn a_stranger_is_refused_and_the_default_user_is_not() {
    let node = TestNode::start(2, Vec::new(), Limits::default());
    for (principal, refused) in [(STRANGER, true), (PrincipalId::default(), false)] {
        for call in calls().into_iter().chain([publish()]) {
            let answer = node.request(principal, call);
            assert_eq!(is_refused(&answer), refused, "{principal:?}: {answer:?}");
        }
    }
}

#[test]
fn a_refused_order_to_close_clients_closes_none() {
    let node = TestNode::start(2, Vec::new(), Limits::default());
    let mut client = node.connect();
    client.call(&["PING"]);
    let order = Call::All(Question::KillClients(ClientFilter::default(), "test".to_owned()));
    assert!(is_refused(&node.request(STRANGER, order)));
    assert_eq!(node.clients().len(), 1);
}

#[test]
fn anybody_may_ask_where_a_room_is() {
    let node = TestNode::start(2, Vec::new(), Limits::default());
    let call = Call::Room(b"t".to_vec(), Question::Room(b"t".to_vec(), false));
    assert!(!is_refused(&node.request(STRANGER, call)));
}
