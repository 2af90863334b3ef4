//! Sets `HUBSUB_PROFILE` to the name of the build profile. Cargo passes only the parent profile to build
//! scripts, but the path of the output directory contains the name.

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    // …/target[/triple]/<profile>/build/<crate>-<hash>/out
    let profile = std::path::Path::new(&out).ancestors().nth(3).and_then(|p| p.file_name());
    let profile = profile.and_then(|p| p.to_str()).unwrap_or("unknown");
    println!("cargo::rustc-env=HUBSUB_PROFILE={profile}");
    println!("cargo::rerun-if-changed=build.rs");
}
