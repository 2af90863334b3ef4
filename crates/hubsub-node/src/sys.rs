//! Calls that are not the same on every system.

use mio::net::TcpStream;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// A listening socket that shares its port with those of other shards.
///
/// # Errors
/// The address cannot be bound.
pub fn listening_socket(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// Sets what every client's socket has. A socket that refuses works without.
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

/// Resident memory of this process; 0 where the system does not say.
#[must_use]
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    // SAFETY: takes and returns plain numbers.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.unwrap_or(0) * page_bytes.max(0) as u64
}

/// Time of this process in the system and in itself, in µs.
#[must_use]
pub fn cpu_us() -> (u64, u64) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills the one structure it is given; all zero is a value of it.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (us(usage.ru_stime), us(usage.ru_utime))
}
