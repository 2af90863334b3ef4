//! Replies of a store in a Redis server while that is unreachable, and after it returns.

use crate::support::{LIMITS, Server, TIMEOUT, append, end, list, load, loaded, nobody, one, save};
use hubsub_sessions::{Answer, Redis, Request, SessionStore, StoreError};
use std::process::Command;
use std::time::Duration;

/// For a server that does not come.
const SHORT: Duration = Duration::from_millis(50);

fn open(server: &Server, parameters: &str, timeout: Duration) -> Redis {
    Redis::new(&server.url(parameters), "c", LIMITS, timeout).unwrap()
}

fn is_unreachable(answer: &Result<Answer, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unreachable(why)) if why.contains("redis.sock"))
}

/// Sends a request until the server is known to be back.
fn wait_for(store: &mut Redis, request: &Request) -> Result<Answer, StoreError> {
    loop {
        let answer = one(store, request.clone());
        if !is_unreachable(&answer) {
            return answer;
        }
        std::thread::yield_now();
    }
}

#[test]
fn each_request_is_refused_while_the_server_is_away_and_answered_once_it_is_back() {
    let Some(mut server) = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]) else { return };
    let mut store = open(&server, "", SHORT);
    let answers = store.carry_out(&[save("a", "s", 0), append("a", "x")]);
    assert_eq!(answers, [Ok(Answer::Saved), Ok(Answer::Appended(1))]);
    server.stop();
    let requests = [save("a", "t", 0), append("a", "y"), load("a"), list(None, 1), end("a"), load("")];
    for _ in 0..3 {
        let answers = store.carry_out(&requests);
        assert!(answers[..5].iter().all(is_unreachable), "{answers:?}");
        assert_eq!(answers[5], Err(StoreError::NoId), "what needs no server has its own answer");
    }
    assert!(server.start_again(&["--appendonly", "yes", "--appendfsync", "always"]));
    assert_eq!(wait_for(&mut store, &load("a")), Ok(loaded("s", &[(1, "x")])));
    assert_eq!(one(&mut store, append("a", "y")), Ok(Answer::Appended(2)));
}

#[test]
fn a_server_that_restarts_between_two_batches_is_found_again() {
    let Some(mut server) = Server::start(&[]) else { return };
    let mut store = open(&server, "", TIMEOUT);
    assert_eq!(one(&mut store, save("a", "s", 0)), Ok(Answer::Saved));
    server.stop();
    assert!(server.start_again(&[]));
    // Its connection is found to be dead, during a batch or before it.
    let answer = one(&mut store, append("a", "x"));
    assert!(answer == Err(StoreError::NoSession) || is_unreachable(&answer), "{answer:?}");
    assert_eq!(one(&mut store, append("a", "x")), Err(StoreError::NoSession), "it kept nothing");
    store.carry_out(&[save("a", "s", 4), append("a", "x")]);
    assert_eq!(
        one(&mut store, load("a")),
        Ok(loaded("s", &[(5, "x")])),
        "a session that is saved again continues"
    );
}

#[test]
fn a_silent_server_is_waited_for_until_the_timeout() {
    let Some(server) = Server::start(&[]) else { return };
    let mut store = open(&server, "", SHORT);
    assert_eq!(one(&mut store, save("a", "s", 0)), Ok(Answer::Saved));
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &server.pid().to_string()]).status().unwrap();
        assert!(sent.success());
    };
    signal("-STOP");
    let answer = one(&mut store, load("a"));
    assert!(is_unreachable(&answer), "{answer:?}");
    signal("-CONT");
    let mut store = open(&server, "", TIMEOUT);
    assert_eq!(one(&mut store, load("a")), Ok(loaded("s", &[])));
}

#[test]
fn a_user_a_password_and_a_database_are_those_of_the_url() {
    let Some(server) =
        Server::start(&["--user", "hub", "on", ">secret", "~*", "+@all", "--requirepass", "other"])
    else {
        return;
    };
    let mut store = open(&server, "?user=hub&pass=secret&db=3", TIMEOUT);
    assert_eq!(one(&mut store, save("a", "s", 0)), Ok(Answer::Saved));
    let mut elsewhere = open(&server, "?user=hub&pass=secret&db=4", TIMEOUT);
    assert_eq!(one(&mut elsewhere, load("a")), Ok(nobody()), "another database");
    let mut other = Redis::new(&server.url("?user=hub&pass=secret&db=3"), "d", LIMITS, TIMEOUT).unwrap();
    assert_eq!(one(&mut other, load("a")), Ok(nobody()), "another name");
    for parameters in ["", "?user=hub&pass=wrong"] {
        let mut unauthenticated = open(&server, parameters, SHORT);
        let error = one(&mut unauthenticated, load("a")).unwrap_err();
        assert!(matches!(error.code(), "failed" | "unreachable"), "{error}");
        assert!(!error.to_string().contains("wrong"), "a password is not shown: {error}");
    }
}

#[test]
fn entries_of_a_session_that_the_server_forgot_are_not_those_of_a_new_one() {
    let Some(server) = Server::start(&[]) else { return };
    let mut store = open(&server, "", TIMEOUT);
    store.carry_out(&[save("a", "s", 0), append("a", "x"), save("b", "s", 0), append("b", "x")]);
    let forget = |key: &str| {
        let mut connection = redis::Client::open(server.url("")).unwrap().get_connection().unwrap();
        redis::cmd("DEL").arg(key).exec(&mut connection).unwrap();
    };
    forget("{hubsub:c}:session:a");
    assert_eq!(one(&mut store, load("a")), Ok(nobody()));
    assert_eq!(one(&mut store, list(None, 1)), Ok(Answer::Listed(vec![("b".into(), "s".into())])));
    store.carry_out(&[save("a", "t", 3), append("a", "y")]);
    assert_eq!(one(&mut store, load("a")), Ok(loaded("t", &[(4, "y")])));
    forget("{hubsub:c}:entries:b");
    assert_eq!(one(&mut store, append("b", "y")), Ok(Answer::Appended(2)));
    assert_eq!(one(&mut store, load("b")), Ok(loaded("s", &[(2, "y")])));
}

#[test]
fn an_error_of_the_server_is_reported_with_its_message() {
    let Some(server) = Server::start(&["--maxmemory", "1"]) else { return };
    let mut store = open(&server, "", TIMEOUT);
    let error = one(&mut store, save("a", "s", 0)).unwrap_err();
    assert_eq!(error.code(), "failed");
    assert!(error.to_string().contains("OOM"), "{error}");
}

#[test]
fn a_url_that_names_no_server_is_refused() {
    for url in ["", "http://localhost", "redis://", "rediss://localhost", "redis://localhost/x"] {
        let error = Redis::new(url, "c", LIMITS, SHORT).map(|_| ()).unwrap_err();
        assert_eq!(error.code(), "no_url", "{url}: {error}");
    }
    for url in ["redis://localhost", "redis://hub:secret@[::1]:7000/2", "unix:///run/redis.sock?db=1"] {
        assert!(Redis::new(url, "c", LIMITS, SHORT).is_ok(), "{url}");
    }
}
