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
        None => line_of(run::run(line.scenario)),
        Some(What::Past(asked)) => line_of(past::read(asked)),
        Some(What::Sync(asked)) => line_of(disk::sync(&asked)),
        Some(What::Scan(asked)) => line_of(disk::scan(&asked)),
        Some(What::Follow(asked)) => line_of(follow::follow(&asked)),
        Some(What::Absent(asked)) => line_of(kept::absent(&asked)),
        Some(What::Retain(asked)) => line_of(kept::retain(&asked)),
        Some(What::Joins(asked)) => line_of(joins::join(&asked)),
        Some(What::Collect(asked)) => line_of(kept::collect(&asked)),
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

fn line_of<E: ToString>(report: Result<impl Serialize, E>) -> Result<String, String> {
    let report = report.map_err(|e| e.to_string())?;
    Ok(serde_json::to_string(&report).expect("a report has string keys only"))
}
