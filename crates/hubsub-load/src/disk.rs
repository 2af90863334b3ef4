//! Measures the disk itself: alternating write and `fdatasync` into a preallocated and written file, so that
//! no sync records a length or an extent.
//!
//! Also drops files from the page cache, so that reads are cold.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use crate::report::{BUILD_PROFILE, Latency, histogram};

/// Length of the file, which is overwritten repeatedly.
const FILE_BYTES: u64 = 64 << 20;
const PIECE_BYTES: usize = 1 << 20;

/// Measures write and fdatasync, one after another; prints one JSON line.
#[derive(Args, Serialize, Clone, Debug)]
pub struct Sync {
    /// Directory on the disk to measure; a file is created there and removed.
    #[arg(long)]
    pub directory: PathBuf,
    /// Number of bytes per write.
    #[arg(long, default_value_t = 4096)]
    pub size: usize,
    /// Duration of the measurement in seconds.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
}

#[derive(Serialize)]
pub struct SyncReport {
    pub build_profile: &'static str,
    pub per_second: f64,
    pub latency: Latency,
}

/// Measures writes and syncs as the options define.
///
/// # Errors
/// Errors of the file system, or invalid options.
pub fn sync(options: &Sync) -> io::Result<SyncReport> {
    if options.size == 0 || options.size as u64 > FILE_BYTES || options.seconds <= 0.0 {
        return Err(io::Error::other(format!(
            "--size {} and --seconds {} measure nothing",
            options.size, options.seconds
        )));
    }
    let path = options.directory.join(format!("hubsub-load-{}.sync", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    let measured = sync_into(&file, options);
    fs::remove_file(&path)?;
    measured
}

fn sync_into(file: &File, options: &Sync) -> io::Result<SyncReport> {
    let piece = vec![0; PIECE_BYTES];
    for at in (0..FILE_BYTES).step_by(PIECE_BYTES) {
        file.write_all_at(&piece, at)?;
    }
    file.sync_all()?;
    let record = vec![b'.'; options.size];
    let places = FILE_BYTES / options.size as u64;
    let mut times = histogram();
    let (started, lasts) = (Instant::now(), Duration::from_secs_f64(options.seconds));
    while started.elapsed() < lasts {
        let from = Instant::now();
        file.write_all_at(&record, times.len() % places * options.size as u64)?;
        file.sync_data()?;
        times.saturating_record(from.elapsed().as_nanos() as u64);
    }
    let per_second = times.len() as f64 / started.elapsed().as_secs_f64();
    Ok(SyncReport { build_profile: BUILD_PROFILE, per_second, latency: Latency::of(&times) })
}

/// Reads files once from the disk; prints one JSON line.
#[derive(Args, Serialize, Clone, Debug)]
pub struct Scan {
    /// A directory; all files below it are read, or only dropped from the page cache.
    #[arg(long)]
    pub directory: PathBuf,
    /// Read no file: only drop the files from the page cache.
    #[arg(long)]
    pub forget: bool,
}

#[derive(Serialize)]
pub struct ScanReport {
    pub build_profile: &'static str,
    pub files: u64,
    pub bytes: u64,
    pub seconds: f64,
}

/// Drops all files below a directory from the page cache, then reads them unless `forget` is set.
///
/// # Errors
/// Errors of the file system.
pub fn scan(options: &Scan) -> io::Result<ScanReport> {
    let mut files = Vec::new();
    list(&options.directory, &mut files)?;
    let mut bytes = 0;
    for path in &files {
        let Some(file) = open(path)? else { continue };
        bytes += file.metadata()?.len();
        file.sync_data()?; // The page cache cannot drop dirty pages.
        forget(&file)?;
    }
    let started = Instant::now();
    let mut piece = vec![0; PIECE_BYTES];
    for path in files.iter().filter(|_| !options.forget) {
        let Some(mut file) = open(path)? else { continue };
        while io::Read::read(&mut file, &mut piece)? > 0 {}
    }
    Ok(ScanReport {
        build_profile: BUILD_PROFILE,
        files: files.len() as u64,
        bytes,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Opens a file, unless its server has removed it.
fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    }
}

#[cfg(target_os = "linux")]
fn forget(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open during the call, which touches no memory of ours.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

#[cfg(not(target_os = "linux"))]
fn forget(file: &File) -> io::Result<()> {
    let _ = file.as_raw_fd();
    Err(io::Error::other("this system cannot be told to forget a file"))
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A separate directory for a test.
    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("hubsub-load-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("below")).expect("the system's directory can be written to");
        path
    }

    #[test]
    fn syncs_are_measured_and_nothing_is_left() {
        let directory = directory("sync");
        let report = sync(&Sync { directory: directory.clone(), size: 300, seconds: 0.05 });
        let report = report.expect("the directory can be written to");
        assert!(report.latency.count > 0 && report.latency.min_ns > 0 && report.per_second > 0.0);
        let left = fs::read_dir(&directory).expect("the directory is there").count();
        assert_eq!(left, 1, "only what was there before");
        fs::remove_dir_all(directory).expect("the directory is there");
    }

    #[test]
    fn files_below_are_found_and_counted() {
        let directory = directory("scan");
        fs::write(directory.join("a"), vec![1; 1000]).expect("the directory can be written to");
        fs::write(directory.join("below/b"), vec![1; 500]).expect("the directory can be written to");
        for forget in [false, true] {
            let report = scan(&Scan { directory: directory.clone(), forget }).expect("all can be read");
            assert_eq!((report.files, report.bytes), (2, 1500));
        }
        fs::remove_dir_all(directory).expect("the directory is there");
    }

    #[test]
    fn what_measures_nothing_is_refused() {
        let refused = sync(&Sync { directory: std::env::temp_dir(), size: 0, seconds: 1.0 });
        assert!(refused.is_err_and(|e| e.to_string().starts_with("--size 0 and --seconds 1")));
    }
}
