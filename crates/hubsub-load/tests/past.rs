//! Runs the history measurements against a server with injected errors, and checks that the reports match
//! them.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread;

use clap::Parser;
use hubsub_load::follow::{Follow, follow};
use hubsub_load::past::{Past, PastReport, read};
use hubsub_load::run;
use hubsub_load::scenario::Scenario;
use hubsub_load::stamp::{FILLER, Stamp};

const EPOCH: u64 = 77;
const RECORDS: u64 = 20;

/// Seq, room and stamped seq of the records that the server returns for a room.
type Tell = fn(room: u32) -> Vec<(u64, u32)>;

fn truth(room: u32) -> Vec<(u64, u32)> {
    (1..=RECORDS).map(|seq| (seq, room)).collect()
}

fn payload(room: u32, seq: u64) -> Vec<u8> {
    let mut payload = vec![FILLER; 40];
    Stamp { publisher: 0, room, seq: seq - 1, due_ns: 0 }.write(&mut payload);
    payload
}

fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// A server on a free port; its threads end with their connections.
fn start(tell: Tell) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound listener has an address").to_string();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut input = BufReader::new(connection.try_clone()?);
                let mut output = connection;
                while let Some(args) = command(&mut input)? {
                    output.write_all(&answer(&args, tell))?;
                }
                io::Result::Ok(())
            });
        }
    });
    address
}

fn answer(args: &[String], tell: Tell) -> Vec<u8> {
    let mut out = Vec::new();
    let room = |name: &str| name.trim_start_matches("room:").parse().expect("rooms have numbers");
    match args[0].as_str() {
        "XADD" if args[1] == "room:00000001" => out.extend_from_slice(b"-OOM no memory\r\n"),
        "XADD" => bulk(&mut out, b"1-1"),
        "HUBSUB" if args[1] == "SUBSCRIBE" => {
            out.extend_from_slice(b"*5\r\n$9\r\nsubscribe\r\n");
            bulk(&mut out, args[2].as_bytes());
            out.extend_from_slice(b":1\r\n$4\r\n77-0\r\n:1\r\n");
            for (seq, stamped) in tell(room(&args[2])) {
                out.extend_from_slice(b"*3\r\n$7\r\nmessage\r\n");
                bulk(&mut out, args[2].as_bytes());
                bulk(&mut out, &payload(stamped, seq));
            }
        }
        "HUBSUB" => {
            let count: usize = args[4].parse().expect("COUNT has a number");
            let mut records = tell(room(&args[2]));
            if let Some(after) = args.get(6) {
                let after: u64 = after.trim_start_matches("77-").parse().expect("positions have a seq");
                records.retain(|&(seq, _)| seq > after);
                records.truncate(count);
            } else {
                records.drain(..records.len().saturating_sub(count));
            }
            out.extend_from_slice(format!("*{}\r\n", records.len()).as_bytes());
            for (seq, stamped) in records {
                out.extend_from_slice(b"*5\r\n");
                bulk(&mut out, format!("{EPOCH}-{seq}").as_bytes());
                out.extend_from_slice(b":1700000000000\r\n");
                bulk(&mut out, args[2].as_bytes());
                bulk(&mut out, b"client-1");
                bulk(&mut out, &payload(stamped, seq));
            }
        }
        other => panic!("the generator does not send {other}"),
    }
    out
}

fn command(input: &mut impl BufRead) -> io::Result<Option<Vec<String>>> {
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
        args.push(String::from_utf8_lossy(&arg).into_owned());
    }
    Ok(Some(args))
}

fn ask(tell: Tell, questions: u64, count: u64) -> PastReport {
    let asked = Past { target: start(tell), pid: None, rooms: 5, connections: 2, count, questions, seed: 1 };
    read(asked).expect("the server answers")
}

fn subscribe(tell: Tell) -> (u64, u64, u64) {
    let asked = Follow {
        target: start(tell),
        rooms: 5,
        subscribers: 10,
        bytes_per_second: 10_000_000,
        receive_bytes: 16_384,
        seconds: 0.5,
    };
    let report = follow(&asked).expect("the server answers");
    assert_eq!((report.errors, report.disconnected), (0, 0));
    (report.messages, report.wrong, report.without)
}

#[test]
fn a_true_past_has_nothing_wrong() {
    let report = ask(truth, 30, 7);
    assert_eq!((report.records, report.wrong, report.errors), (30 * 7, 0, 0));
    assert_eq!((report.latency.count, report.bytes), (30, 30 * 7 * 40));
}

#[test]
fn every_record_of_every_room_is_read_page_by_page() {
    let report = ask(truth, 0, 6);
    assert_eq!((report.records, report.wrong), (5 * RECORDS, 0));
    assert_eq!(report.latency.count, 5 * 4, "20 records in pages of 6");
}

#[test]
fn a_hole_in_the_past_is_wrong() {
    let hole: Tell = |room| truth(room).into_iter().filter(|&(seq, _)| seq != 15).collect();
    assert_eq!(ask(hole, 10, 20).wrong, 10);
    assert_eq!(ask(hole, 0, 20).wrong, 5);
}

#[test]
fn a_record_of_another_room_is_wrong() {
    let astray: Tell =
        |room| truth(room).into_iter().map(|(seq, r)| (seq, if seq == 20 { r + 1 } else { r })).collect();
    assert_eq!(ask(astray, 10, 2).wrong, 10);
    assert_eq!(subscribe(astray), (10 * RECORDS, 10, 0));
}

#[test]
fn a_past_that_ends_early_is_wrong() {
    // The server reports this last record, but does not return the ones before.
    let short: Tell = |room| if room == 3 { vec![(RECORDS, room)] } else { truth(room) };
    let report = ask(short, 0, 100);
    assert_eq!((report.records, report.wrong), (4 * RECORDS + 1, 1));
}

#[test]
fn followers_count_what_is_missing_and_who_got_nothing() {
    assert_eq!(subscribe(truth), (10 * RECORDS, 0, 0));
    let doubled: Tell = |room| truth(room).into_iter().flat_map(|record| [record; 2]).collect();
    // A doubled 0 looks like the start of another run of the generator.
    assert_eq!(subscribe(doubled), (20 * RECORDS, 10 * (RECORDS - 1), 0));
    assert_eq!(subscribe(|room| if room == 0 { Vec::new() } else { truth(room) }), (8 * RECORDS, 0, 2));
}

#[test]
fn entries_added_to_streams_are_answered_and_timed() {
    let address = start(truth);
    let args = ["--verb", "xadd", "--replies", "--subscribers", "0", "--publishers", "2", "--in-flight", "8"];
    let run = |more: &[&str]| {
        let all = ["hubsub-load", "--target", &address].into_iter().chain(args).chain(more.iter().copied());
        run::run(Scenario::parse_from(all)).expect("the server answers")
    };
    let report = run(&["--messages", "100"]);
    assert_eq!((report.total.answered, report.total.errors, report.replies.count), (100, 0, 100));
    assert_eq!(report.window.answered, 100);
    let refused = run(&["--messages", "100", "--rooms", "2", "--publish-to", "own"]).total;
    assert_eq!((refused.answered, refused.errors), (100, 50));
    assert_eq!(refused.error.as_deref(), Some("OOM no memory"));
}

#[test]
fn a_reader_of_what_is_no_history_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let target = listener.local_addr().expect("a bound listener has an address").to_string();
    thread::spawn(move || {
        let (mut connection, _) = listener.accept()?;
        let mut input = BufReader::new(connection.try_clone()?);
        command(&mut input)?;
        connection.write_all(b"+OK\r\n")?;
        command(&mut input) // Serves until the reader disconnects.
    });
    let asked = Past { target, pid: None, rooms: 1, connections: 1, count: 1, questions: 1, seed: 1 };
    let error = read(asked).err().expect("a status line is no history");
    assert!(error.contains("not a reply of HISTORY: \"+OK\""), "{error}");
}
