//! `hubsub-load`: runs one scenario and prints its report as one JSON line.

use std::process::ExitCode;

use clap::Parser;
use hubsub_load::{run, scenario::Scenario};

fn main() -> ExitCode {
    match run::run(Scenario::parse()) {
        Ok(report) => {
            println!("{}", serde_json::to_string(&report).expect("a report has string keys only"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hubsub-load: {error}");
            ExitCode::FAILURE
        }
    }
}
