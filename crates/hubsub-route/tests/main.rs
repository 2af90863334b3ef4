//! All files beside this one. One binary is compiled and linked once.

mod brokers;
mod closed;
mod consumers;
mod groups;
mod hub_cursors;
mod logged;
mod logged_past;
mod occupancy;
mod pages;
mod producers;
mod questions;
mod relay;
mod retained;
mod support;
mod traces;

#[test]
fn each_file_is_one_of_these() {
    let named = include_str!("main.rs");
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if let Some(module) = name.strip_suffix(".rs")
            && module != "main"
        {
            assert!(named.contains(&format!("\nmod {module};\n")), "{name} is not compiled");
        }
    }
}
