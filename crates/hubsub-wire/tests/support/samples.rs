//! Fixed samples of fuzz inputs, in `fuzz/sample`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The samples of a target, by name.
pub fn samples(target: &str) -> BTreeMap<String, Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/sample").join(target);
    let files = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let read = |file: fs::DirEntry| {
        (file.file_name().into_string().expect("plain names"), fs::read(file.path()).expect("a file"))
    };
    files.map(|file| read(file.expect("a file"))).collect()
}

/// Passes each sample of a target with one wrong byte, at each `step(length)`th position; and all positions
/// at which to split it.
pub fn with_a_wrong_byte(
    target: &str,
    step: impl Fn(usize) -> usize,
    mut check: impl FnMut(&[u8], &[usize], usize),
) {
    for (name, input) in samples(target) {
        eprintln!("{name}");
        for at in (0..input.len()).step_by(step(input.len())) {
            let mut wrong = input.clone();
            wrong[at] ^= 1 << (at % 8);
            let bytes: Vec<usize> = (0..wrong.len()).collect();
            check(&wrong, &bytes, at);
        }
    }
}
