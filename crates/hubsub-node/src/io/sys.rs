//! System calls that differ between platforms.

use mio::net::TcpStream;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// Makes `count` listening sockets, one per shard, on the same port.
///
/// The first one listens before it allows sharing. So a port where another process listens is refused, and so
/// is every later process that binds like this. A socket that shared from the start would take half of the
/// other process's clients.
///
/// # Errors
/// The address cannot be bound.
pub fn listening_sockets(address: SocketAddr, count: u16, backlog: i32) -> io::Result<Vec<TcpListener>> {
    let first = listening_socket(address, false, backlog)?;
    first.set_reuse_port(true)?;
    let bound = first.local_addr()?.as_socket().expect("it was bound to a socket address");
    let mut sockets = vec![first.into()];
    for _ in 1..count {
        sockets.push(listening_socket(bound, true, backlog)?.into());
    }
    Ok(sockets)
}

fn listening_socket(address: SocketAddr, shares: bool, backlog: i32) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shares)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket)
}

/// Sets the options of a client's socket. Failures are ignored.
pub fn prepare(socket: &TcpStream, keepalive_ms: u64, user_timeout_ms: u64) {
    let _ = socket.set_nodelay(true);
    let socket = SockRef::from(socket);
    if keepalive_ms > 0 {
        let time = Duration::from_millis(keepalive_ms.max(1000));
        let keepalive =
            TcpKeepalive::new().with_time(time).with_interval((time / 3).max(Duration::from_secs(1)));
        let _ = socket.set_tcp_keepalive(&keepalive);
    }
    #[cfg(target_os = "linux")]
    if user_timeout_ms > 0 {
        let _ = socket.set_tcp_user_timeout(Some(Duration::from_millis(user_timeout_ms)));
    }
    #[cfg(not(target_os = "linux"))]
    let _ = user_timeout_ms;
}

/// Limits the data that the kernel buffers for a client beyond what the network has taken. Otherwise it
/// buffers megabytes per slow reader: memory that no limit here counts, and work done for slow clients before
/// fast ones.
pub fn pace(socket: &TcpStream) {
    #[cfg(target_os = "linux")]
    {
        const UNSENT_BYTES: u32 = 32 * 1024;
        let _ = SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Lowers this thread's priority below the process's other threads, where the system has priorities per
/// thread.
pub fn yield_to_others() {
    #[cfg(target_os = "linux")]
    // SAFETY: takes and returns plain numbers; 0 is the calling thread here.
    unsafe {
        let _ = libc::setpriority(libc::PRIO_PROCESS, 0, 10);
    }
}

/// Gives this thread a short time slice, because it works briefly and others wait for it: once woken, it runs
/// before long-running threads. Else it waits until one has used its slice, some 3 ms. Systems without this
/// (Linux before 6.12) ignore it.
pub fn be_prompt() {
    #[cfg(target_os = "linux")]
    {
        const SLICE_NS: u64 = 100_000;
        const SIZE: u32 = size_of::<libc::sched_attr>() as u32;
        // SAFETY: all zero is a valid value; the calls access it within the size that they are given, and 0
        // is the calling thread.
        unsafe {
            let mut attr = std::mem::zeroed::<libc::sched_attr>();
            if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, SIZE, 0) == 0
                && attr.sched_policy == libc::SCHED_OTHER as u32
            {
                attr.sched_runtime = SLICE_NS;
                let _ = libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
            }
        }
    }
}

/// Cryptographically secure random bytes.
///
/// # Panics
/// The system has no random numbers; every supported one has.
pub fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    // SAFETY: the call writes the buffer within the length that it is given.
    let outcome = unsafe { libc::getentropy(bytes.as_mut_ptr().cast(), bytes.len()) };
    assert_eq!(outcome, 0, "the system gives no random numbers");
    bytes
}

/// Limit of open descriptors of this process; `u64::MAX` if the system does not report it.
pub fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure that it is given, which outlives it.
    let outcome = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if outcome == 0 { limit.rlim_cur } else { u64::MAX }
}

/// Resident memory of this process, in bytes; 0 if the system does not report it.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    // SAFETY: takes and returns plain numbers.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.unwrap_or(0) * page_bytes.max(0) as u64
}

/// CPU time of this process, in the system and in user mode, in µs.
pub fn cpu_us() -> (u64, u64) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills the structure that it is given; all zero is a valid value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (us(usage.ru_stime), us(usage.ru_utime))
}
