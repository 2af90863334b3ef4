//! Runs the generator against a small broker with injected faults, and checks that the report matches them.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use clap::Parser;
use hubsub_load::report::Report;
use hubsub_load::run;
use hubsub_load::scenario::Scenario;

/// A fault, applied to the n-th publish of all (from 0): maps the delivery's frame to the frames that the
/// room's subscribers get.
type Fault = fn(u64, Vec<u8>, &mut Option<Vec<u8>>) -> Vec<Vec<u8>>;

struct Broker {
    fault: Fault,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rooms: HashMap<Vec<u8>, Vec<(TcpStream, u8)>>,
    published: u64,
    /// A frame that a fault delays.
    held: Option<Vec<u8>>,
}

impl Broker {
    /// Serves on a free port; threads end with their connections.
    fn start(fault: Fault) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound listener has an address").to_string();
        let broker = Arc::new(Broker { fault, state: Mutex::default() });
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let broker = Arc::clone(&broker);
                thread::spawn(move || broker.serve(connection));
            }
        });
        address
    }

    fn serve(&self, connection: TcpStream) -> io::Result<()> {
        let mut input = BufReader::new(connection.try_clone()?);
        let mut output = connection;
        let mut resp = 2;
        while let Some(args) = command(&mut input)? {
            match args[0].as_slice() {
                b"HELLO" => {
                    resp = 3;
                    output.write_all(b"%1\r\n+proto\r\n:3\r\n")?;
                }
                b"SUBSCRIBE" | b"SSUBSCRIBE" => {
                    for (i, room) in args[1..].iter().enumerate() {
                        let mut frame = head(resp, &args[0].to_ascii_lowercase(), room);
                        frame.extend_from_slice(format!(":{}\r\n", i + 1).as_bytes());
                        let mut state = self.state.lock().expect("no thread panics with the lock");
                        output.write_all(&frame)?;
                        state.rooms.entry(room.clone()).or_default().push((output.try_clone()?, resp));
                    }
                }
                b"PUBLISH" | b"SPUBLISH" => {
                    let word: &[u8] = if args[0][0] == b'S' { b"smessage" } else { b"message" };
                    let receivers = self.publish(word, &args[1], &args[2])?;
                    output.write_all(format!(":{receivers}\r\n").as_bytes())?;
                }
                _ => output.write_all(b"-ERR unknown command\r\n")?,
            }
        }
        Ok(())
    }

    fn publish(&self, word: &[u8], room: &[u8], payload: &[u8]) -> io::Result<usize> {
        let mut state = self.state.lock().expect("no thread panics with the lock");
        let state = &mut *state;
        let n = state.published;
        state.published += 1;
        let Some(subscribers) = state.rooms.get_mut(room) else { return Ok(0) };
        let resp = subscribers.first().map_or(2, |(_, resp)| *resp);
        let mut frame = head(resp, word, room);
        frame.extend_from_slice(format!("${}\r\n", payload.len()).as_bytes());
        frame.extend_from_slice(payload);
        frame.extend_from_slice(b"\r\n");
        for frame in (self.fault)(n, frame, &mut state.held) {
            for (subscriber, _) in &mut *subscribers {
                subscriber.write_all(&frame)?;
            }
        }
        Ok(subscribers.len())
    }
}

fn head(resp: u8, kind: &[u8], room: &[u8]) -> Vec<u8> {
    let mut out = if resp == 3 { b">3\r\n".to_vec() } else { b"*3\r\n".to_vec() };
    for bytes in [kind, room] {
        out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn command(input: &mut impl BufRead) -> io::Result<Option<Vec<Vec<u8>>>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let number = |line: &str| line[1..].trim().parse::<usize>().expect("the generator sends numbers");
    let mut args = Vec::new();
    for _ in 0..number(&line) {
        line.clear();
        input.read_line(&mut line)?;
        let mut arg = vec![0; number(&line) + 2];
        input.read_exact(&mut arg)?;
        arg.truncate(arg.len() - 2);
        args.push(arg);
    }
    Ok(Some(args))
}

fn report(fault: Fault, args: &[&str]) -> Report {
    let address = Broker::start(fault);
    let all = ["hubsub-load", "--target", address.as_str()].into_iter().chain(args.iter().copied());
    run::run(Scenario::parse_from(all)).expect("the broker answers")
}

/// One room with two subscribers, so every fault occurs twice.
const ONE_ROOM: [&str; 6] = ["--rooms", "1", "--subscribers", "2", "--messages", "100"];

fn faithful(_: u64, frame: Vec<u8>, _: &mut Option<Vec<u8>>) -> Vec<Vec<u8>> {
    vec![frame]
}

#[test]
fn a_faithful_broker_has_nothing_to_answer_for() {
    for resp in ["2", "3"] {
        let args = [
            "--rooms",
            "20",
            "--subscribers",
            "3",
            "--connections",
            "6",
            "--publishers",
            "4",
            "--in-flight",
            "8",
        ];
        let args = [&args[..], &["--messages", "2001", "--threads", "3", "--resp", resp]].concat();
        let report = report(faithful, &args);
        let total = report.total;
        assert_eq!((total.published, total.answered, total.expected), (2001, 2001, 6003));
        assert_eq!((total.delivered, total.receivers), (6003, 6003));
        assert_eq!((total.lost, total.doubled, total.reordered), (0, 0, 0));
        assert_eq!((total.misrouted, total.corrupt, total.errors, total.disconnected), (0, 0, 0, 0));
        assert_eq!(report.latency.count, 6003);
        assert_eq!(report.window.delivered, 6003);
    }
}

#[test]
fn dropped_deliveries_are_lost() {
    let total = report(|n, frame, _| if n % 10 == 3 { vec![] } else { vec![frame] }, &ONE_ROOM).total;
    assert_eq!((total.delivered, total.lost, total.doubled, total.reordered), (180, 20, 0, 0));
}

#[test]
fn a_dropped_end_is_lost() {
    let total = report(|n, frame, _| if n >= 90 { vec![] } else { vec![frame] }, &ONE_ROOM).total;
    assert_eq!((total.delivered, total.lost), (180, 20));
}

#[test]
fn repeated_deliveries_are_doubled() {
    let twice: Fault = |n, frame, _| if n % 25 == 0 { vec![frame.clone(), frame] } else { vec![frame] };
    let total = report(twice, &ONE_ROOM).total;
    assert_eq!((total.delivered, total.lost, total.doubled, total.reordered), (208, 0, 8, 0));
}

#[test]
fn swapped_deliveries_are_reordered() {
    let swap: Fault = |n, frame, held| match n % 20 {
        0 => {
            *held = Some(frame);
            vec![]
        }
        1 => vec![frame, held.take().expect("the one before was held")],
        _ => vec![frame],
    };
    let total = report(swap, &ONE_ROOM).total;
    assert_eq!((total.delivered, total.lost, total.doubled, total.reordered), (200, 0, 0, 10));
}

#[test]
fn changed_payloads_are_corrupt_and_their_messages_lost() {
    let change: Fault = |n, mut frame, _| {
        if n == 50 {
            let last = frame.len() - 3;
            frame[last] ^= 1;
        }
        vec![frame]
    };
    let total = report(change, &ONE_ROOM).total;
    assert_eq!((total.corrupt, total.lost), (2, 2));
}

#[test]
fn a_wrong_channel_is_misrouted() {
    let rename: Fault = |n, mut frame, _| {
        if n == 7 {
            let name_at = frame
                .windows(13)
                .position(|name| name == b"room:00000000")
                .expect("the frame names its room");
            frame[name_at + 12] = b'1';
        }
        vec![frame]
    };
    let total = report(rename, &ONE_ROOM).total;
    assert_eq!((total.misrouted, total.corrupt, total.lost), (2, 0, 2));
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound listener has an address").to_string();
    drop(listener);
    let failed = run::run(Scenario::parse_from(["hubsub-load", "--target", address.as_str()]));
    assert!(failed.is_err_and(|error| error.starts_with("cannot connect to 127.0.0.1:")));
}

#[test]
fn rooms_with_numbers_of_their_own_are_where_the_targets_say() {
    for verb in ["publish", "spublish"] {
        let (a, b) = (Broker::start(faithful), Broker::start(faithful));
        let targets = format!("{a},{b}");
        let run = |more: &[&str]| {
            let args = [
                &["hubsub-load", "--target", &targets, "--rooms", "4", "--numbers", "7,93,105,12345678"][..],
                &["--subscribers", "2", "--publishers", "8", "--publish-to", "own", "--messages", "400"],
                &["--verb", verb, "--patience", "0.2", "--rate", "4000", "--sleep", "--threads", "2"],
                more,
            ];
            run::run(Scenario::parse_from(args.concat())).expect("the brokers answer").total
        };
        let total = run(&[]);
        assert_eq!((total.published, total.delivered, total.receivers), (400, 800, 800));
        assert_eq!((total.lost, total.misrouted, total.errors, total.disconnected), (0, 0, 0, 0));
        // These brokers are independent: a message published at the other one reaches nobody.
        let total = run(&["--publish-target", &format!("{b},{a}")]);
        assert_eq!((total.published, total.delivered, total.receivers, total.lost), (400, 0, 0, 800));
    }
}
