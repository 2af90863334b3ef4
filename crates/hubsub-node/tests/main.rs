//! All files beside this one but `memory.rs`, which looks at the memory of its process. One binary is compiled and linked once.

mod accept;
mod access;
mod durable;
mod given;
mod hostile;
mod redis_input;
mod redis_order;
mod routes;
mod support;

#[test]
fn each_file_is_one_of_these() {
    let named = include_str!("main.rs");
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if let Some(module) = name.strip_suffix(".rs")
            && module != "main"
            && module != "memory"
        {
            assert!(named.contains(&format!("\nmod {module};\n")), "{name} is not compiled");
        }
    }
}
