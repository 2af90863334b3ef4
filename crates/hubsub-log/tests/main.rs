//! All files beside this one; `compaction` is a binary of its own. One binary is compiled and linked once.

mod arrow;
mod crash;
mod damage;
mod first_start;
mod hubs;
mod names;
mod readers;
mod repair;
mod retention;
mod rows;
mod scan;
mod stalled;
mod support;

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
