//! The measurement of docs/adr/0002: the time and memory that integer handles save on the hot path, compared
//! with the same tables keyed by names.
//!
//! `cargo run --release -p hubsub-route --example handles`. A time is the median of `ROUNDS` rounds; memory is
//! the bytes requested from the allocator. Both sides use the same keyed hash. The tables with handles are the
//! broker's own (`Rooms`, `Topics`, `IdSet`); connections are replaced by records of about their size.

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use hubsub_route::idset::IdSet;
use hubsub_route::rooms::Rooms;
use hubsub_route::topics::Topics;
use hubsub_route::{Hubs, Namespace, Now, RoomHandle};
use hubsub_types::{ClassTable, Limits, ShardId};
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

const ROUNDS: usize = 21;

/// Deliveries, or look-ups, of one round.
const OPERATIONS: usize = 2_000_000;

/// Rooms of the look-up: as many as the caches of a CPU hold, and more.
const ROOMS: [usize; 2] = [1_000, 100_000];

/// Shapes of the fan-out: rooms, and subscribers of each.
const SHAPES: [(usize, usize); 3] = [(1, 1_000), (1_000, 10), (10_000, 1)];

/// Shapes of the memory: connections, and subscriptions of each.
const TABLES: [(usize, usize, &str); 2] =
    [(100_000, 1, "a room of its own each"), (10_000, 10, "1,000 rooms, 100 subscribers each")];

/// A map by name.
type ByName<T> = HashMap<String, T, RandomState>;

fn main() {
    println!("profile: {}", if cfg!(debug_assertions) { "debug: figures mean nothing" } else { "release" });
    println!("\n| ns a delivery | by slab index | by name | ratio |\n|---|---|---|---|");
    for (rooms, subscribers) in SHAPES {
        let (index, name) = (fan_out_by_index(rooms, subscribers), fan_out_by_name(rooms, subscribers));
        println!("| {rooms} × {subscribers} | {index:.1} | {name:.1} | {:.1} |", name / index);
    }
    println!("\n| ns a look-up | by handle | by name | ratio |\n|---|---|---|---|");
    for rooms in ROOMS {
        let (handle, name) = look_up(rooms);
        println!("| one of {rooms} rooms | {handle:.1} | {name:.1} | {:.1} |", name / handle);
    }
    println!("\n| bytes a subscription | handles | shared names | names |\n|---|---|---|---|");
    for (connections, each, title) in TABLES {
        let handles = grown(|| subscribe_by_handle(connections, each));
        let shared = grown(|| subscribe_by_shared_name(connections, each));
        let names = grown(|| subscribe_by_name(connections, each));
        let per = |bytes: usize| bytes as f64 / (connections * each) as f64;
        println!("| {title} | {:.0} | {:.0} | {:.0} |", per(handles), per(shared), per(names));
    }
}

/// The fields of a connection that a delivery changes, in a record of about the size of a real one.
#[derive(Default)]
struct Conn {
    messages: u64,
    bytes: u64,
    _rest: [u64; 13],
}

impl Conn {
    #[inline]
    fn deliver(&mut self) {
        self.messages += 1;
        self.bytes += 170;
    }
}

fn fan_out_by_index(rooms: usize, subscribers: usize) -> f64 {
    let mut conns: Vec<Option<Conn>> = (0..rooms * subscribers).map(|_| Some(Conn::default())).collect();
    let mut tables: Vec<IdSet> = (0..rooms).map(|_| IdSet::default()).collect();
    for (place, conn) in shuffled(rooms * subscribers).into_iter().enumerate() {
        tables[place / subscribers].insert(conn as u32);
    }
    let order = shuffled(rooms);
    measure(|| {
        for i in 0..OPERATIONS / subscribers {
            for &conn in tables[order[i % rooms]].as_slice() {
                if let Some(conn) = &mut conns[conn as usize] {
                    conn.deliver();
                }
            }
        }
        black_box(&mut conns);
    })
}

fn fan_out_by_name(rooms: usize, subscribers: usize) -> f64 {
    let mut conns: ByName<Conn> =
        (0..rooms * subscribers).map(|conn| (conn_name(conn), Conn::default())).collect();
    let mut tables: ByName<Vec<String>> = ByName::default();
    for (place, conn) in shuffled(rooms * subscribers).into_iter().enumerate() {
        tables.entry(room_name(place / subscribers)).or_default().push(conn_name(conn));
    }
    let order: Vec<String> = shuffled(rooms).into_iter().map(room_name).collect();
    measure(|| {
        for i in 0..OPERATIONS / subscribers {
            for conn in &tables[&order[i % rooms]] {
                if let Some(conn) = conns.get_mut(conn) {
                    conn.deliver();
                }
            }
        }
        black_box(&mut conns);
    })
}

/// Times of a look-up by handle and by name, in ns. The keys are in memory in the order of the look-ups, as in
/// a socket's buffer; the rooms are not.
fn look_up(count: usize) -> (f64, f64) {
    let classes = Arc::new(ClassTable::new(Vec::new(), true));
    let hubs = Arc::new(Hubs::new(1, &classes, Vec::new()));
    let mut rooms = Rooms::new(
        classes,
        hubs,
        ShardId(0),
        &Limits::default(),
        (Arc::new(AtomicU64::new(1)), Arc::default()),
    );
    for room in 0..count {
        rooms.open(room_name(room).as_bytes(), Now::default(), |_| None).expect("within the limits");
    }
    let asked = shuffled(count);
    let names: Vec<u8> = asked.iter().flat_map(|&room| room_name(room).into_bytes()).collect();
    let names: Vec<&[u8]> = names.chunks(names.len() / count).collect();
    let handles: Vec<RoomHandle> = names.iter().map(|name| rooms.find(name).expect("it is open")).collect();
    let mut sum = 0;
    let by_handle = measure(|| {
        for i in 0..OPERATIONS {
            sum += rooms.get(handles[i % count]).map_or(0, |room| room.epoch.0);
        }
    });
    let by_name = measure(|| {
        for i in 0..OPERATIONS {
            let found = rooms.find(names[i % count]).and_then(|handle| rooms.get(handle));
            sum += found.map_or(0, |room| room.epoch.0);
        }
    });
    black_box(sum);
    (by_handle, by_name)
}

/// Topic of a connection's subscription: all connections share `rooms` of them.
fn topic_of(conn: usize, nth: usize, connections: usize, each: usize) -> usize {
    let rooms = if each == 1 { connections } else { 1_000 };
    (conn * each + nth) % rooms
}

fn subscribe_by_handle(connections: usize, each: usize) -> impl Sized {
    let classes = Arc::new(ClassTable::new(Vec::new(), true));
    let hubs = Arc::new(Hubs::new(1, &classes, Vec::new()));
    let mut topics = Topics::new(classes, hubs, 64);
    let mut clients: Vec<IdSet> = (0..connections).map(|_| IdSet::default()).collect();
    for (conn, client) in clients.iter_mut().enumerate() {
        for nth in 0..each {
            let name = room_name(topic_of(conn, nth, connections, each));
            let topic = topics.intern(Namespace::Global, name.as_bytes());
            topics.get_mut(topic).subs.insert(conn as u32);
            client.insert(topic);
        }
    }
    (topics, clients)
}

fn subscribe_by_name(connections: usize, each: usize) -> impl Sized {
    let mut topics: ByName<HashSet<String, RandomState>> = ByName::default();
    let mut clients: ByName<HashSet<String, RandomState>> = ByName::default();
    for conn in 0..connections {
        for nth in 0..each {
            let name = room_name(topic_of(conn, nth, connections, each));
            topics.entry(name.clone()).or_default().insert(conn_name(conn));
            clients.entry(conn_name(conn)).or_default().insert(name);
        }
    }
    (topics, clients)
}

/// Names as keys, but each name is there once.
fn subscribe_by_shared_name(connections: usize, each: usize) -> impl Sized {
    type Sets = HashMap<Arc<str>, HashSet<Arc<str>, RandomState>, RandomState>;
    let (mut topics, mut clients) = (Sets::default(), Sets::default());
    for conn in 0..connections {
        let client: Arc<str> = conn_name(conn).into();
        for nth in 0..each {
            let name = room_name(topic_of(conn, nth, connections, each));
            let known = topics.get_key_value(&*name).map(|(key, _)| Arc::clone(key));
            let name = known.unwrap_or_else(|| name.into());
            topics.entry(Arc::clone(&name)).or_default().insert(Arc::clone(&client));
            clients.entry(Arc::clone(&client)).or_default().insert(name);
        }
    }
    (topics, clients)
}

fn room_name(room: usize) -> String {
    format!("chat:room-{room:06}")
}

fn conn_name(conn: usize) -> String {
    format!("client-{conn:08}")
}

/// ns an operation: the median of the rounds, after one that warms up.
fn measure(mut round: impl FnMut()) -> f64 {
    round();
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            round();
            start.elapsed().as_nanos() as f64 / OPERATIONS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// The numbers below `count` in an order that is the same in every run (SplitMix64).
fn shuffled(count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    let mut state = 1u64;
    for i in (1..count).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        numbers.swap(i, (x ^ (x >> 31)) as usize % (i + 1));
    }
    numbers
}

/// Bytes that are allocated now.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator as it came; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps this trait's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes that the value returned by `make` occupies.
fn grown<T>(make: impl FnOnce() -> T) -> usize {
    let before = ALLOCATED.load(Ordering::Relaxed);
    let made = make();
    let after = ALLOCATED.load(Ordering::Relaxed);
    drop(made);
    after - before
}
