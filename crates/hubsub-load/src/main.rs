//! `hubsub-load`: runs one scenario, or one of the smaller measurements, and prints its report as one JSON
//! line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use hubsub_load::{disk, follow, joins, kept, past, run, scenario::Scenario};
use serde::Serialize;

#[derive(Parser)]
#[command(name = "hubsub-load", version, about, args_conflicts_with_subcommands = true)]
struct Line {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum What {
    /// Measures a write and its fdatasync, one after another.
    Sync(disk::Sync),
    /// Drops the files below a directory from the page cache, and reads them from the disk.
    Scan(disk::Scan),
    /// Reads the history of rooms.
    Past(past::Past),
    /// Subscribes from the first record of rooms on, and reads slowly.
    Follow(follow::Follow),
    /// Creates sessions of MQTT clients that then disconnect.
    Absent(kept::Absent),
    /// Publishes retained messages to an MQTT broker.
    Retain(kept::Retain),
    /// Subscribes to all retained messages, and counts them.
    Collect(kept::Collect),
    /// Joins and leaves topics of Phoenix channels at a fixed rate.
    Joins(joins::Joins),
}

fn main() -> ExitCode {
    let line = Line::parse();
    let printed = match line.what {
        None => run::run(line.scenario).map(|report| json(&report)),
        Some(What::Past(asked)) => past::read(asked).map(|report| json(&report)),
        Some(What::Sync(asked)) => disk::sync(&asked).map(|report| json(&report)).map_err(|e| e.to_string()),
        Some(What::Scan(asked)) => disk::scan(&asked).map(|report| json(&report)).map_err(|e| e.to_string()),
        Some(What::Follow(asked)) => {
            follow::follow(&asked).map(|report| json(&report)).map_err(|e| e.to_string())
        }
        Some(What::Absent(asked)) => {
            kept::absent(&asked).map(|report| json(&report)).map_err(|e| e.to_string())
        }
        Some(What::Retain(asked)) => {
            kept::retain(&asked).map(|report| json(&report)).map_err(|e| e.to_string())
        }
        Some(What::Joins(asked)) => {
            joins::join(&asked).map(|report| json(&report)).map_err(|e| e.to_string())
        }
        Some(What::Collect(asked)) => {
            kept::collect(&asked).map(|report| json(&report)).map_err(|e| e.to_string())
        }
    };
    match printed {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hubsub-load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn json(report: &impl Serialize) -> String {
    serde_json::to_string(report).expect("a report has string keys only")
}
