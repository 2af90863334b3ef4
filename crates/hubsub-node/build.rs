//! Tells the crate the name of the profile that it is built with: cargo gives
//! only the parent profile, but the output directory has its name.

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    // …/target[/triple]/<profile>/build/<crate>-<hash>/out
    let profile = std::path::Path::new(&out).ancestors().nth(3).and_then(|p| p.file_name());
    let profile = profile.and_then(|p| p.to_str()).unwrap_or("unknown");
    println!("cargo::rustc-env=HUBSUB_PROFILE={profile}");
    println!("cargo::rerun-if-changed=build.rs");
}
