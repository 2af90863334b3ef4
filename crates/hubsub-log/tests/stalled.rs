//! A disk that is slow to write an index does not block readers.

use hubsub_log::sim::{SimDisk, SimFile};
use hubsub_log::storage::{Storage, StorageFile};
use hubsub_log::{Batch, ChainOptions, Keep, LogOptions, Record, open, record};
use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

type Look = Box<dyn Fn() + Send>;

/// A disk that runs a reader while a run is written.
#[derive(Default)]
struct Stalled {
    disk: SimDisk,
    look: Arc<Mutex<Option<Look>>>,
}

struct File {
    file: SimFile,
    look: Option<Arc<Mutex<Option<Look>>>>,
}

impl Stalled {
    fn file(&self, path: &str, file: io::Result<SimFile>) -> io::Result<File> {
        let look = path.ends_with(".runs").then(|| Arc::clone(&self.look));
        file.map(|file| File { file, look })
    }
}

impl Storage for Stalled {
    type File = File;

    fn create(&self, path: &str) -> io::Result<File> {
        self.file(path, self.disk.create(path))
    }
    fn open(&self, path: &str) -> io::Result<File> {
        self.file(path, self.disk.open(path))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn unlink(&self, path: &str) -> io::Result<()> {
        self.disk.unlink(path)
    }
    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        self.disk.list(directory)
    }
    fn list_directories(&self, directory: &str) -> io::Result<Vec<String>> {
        self.disk.list_directories(directory)
    }
    fn sync_directory(&self, directory: &str) -> io::Result<()> {
        self.disk.sync_directory(directory)
    }
}

impl StorageFile for File {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let look = self.look.as_ref().and_then(|look| look.lock().unwrap().take());
        look.into_iter().for_each(|look| look());
        self.file.write_at(bytes, at)
    }
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(bytes, at)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

#[test]
fn a_hub_tells_of_itself_and_of_a_room_while_an_index_is_written() {
    let disk = Arc::new(Stalled::default());
    let chain = ChainOptions { segment_bytes: 1 << 20, run_bytes: 1024 };
    let options = LogOptions { reserve_bytes: 0, journal_bytes: 8192, chain, ..LogOptions::default() };
    let mut segments = open(Arc::clone(&disk), 7, options).unwrap().segments;
    let hub = segments.add_hub("chat", 0, Keep::Log).unwrap();
    let chain = segments.chain(hub).unwrap();
    let (tell, told) = mpsc::channel();
    let look = move || {
        let (answer, answered) = mpsc::channel();
        let chain = Arc::clone(&chain);
        std::thread::spawn(move || {
            let mut seqs = 0;
            let found = chain.read_back_from(b"room", &mut None, u64::MAX, |_| {
                seqs += 1;
                std::ops::ControlFlow::Continue(())
            });
            let _ = answer.send((chain.info().next, found.is_ok().then_some(seqs)));
        });
        tell.send(answered.recv_timeout(Duration::from_secs(10))).unwrap();
    };
    *disk.look.lock().unwrap() = Some(Box::new(look));
    let room = b"room";
    let record = Record {
        hub,
        offset: 1,
        epoch: 1,
        seq: 1,
        room,
        topic: room,
        payload: &[0; 2000],
        ..Record::default()
    };
    let mut bytes = Vec::new();
    record::encode(&record, &mut bytes);
    segments.apply(1, 1, vec![Batch { hub, first: 1, count: 1, bytes }]);
    segments.flush().unwrap();
    assert_eq!(
        told.recv().unwrap(),
        Ok((2, Some(1))),
        "what was written is there, the run is not in its file"
    );
}
