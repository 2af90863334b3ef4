//! Resource usage of a process on Linux: CPU time of all its threads in ns, memory, and the kernel's memory
//! for sockets. Values are None on other systems, and for a process that has ended.

use std::fs;

use serde::Serialize;

#[derive(Clone, Default, Serialize, Debug)]
pub struct Cpu {
    /// Total of all running threads, in ns.
    pub ns: u64,
    /// User time of the process, in ticks of 10 ms.
    pub user_ticks: u64,
    /// System time of the process, in ticks of 10 ms.
    pub system_ticks: u64,
}

pub fn cpu(pid: u32) -> Option<Cpu> {
    let mut ns = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let path = task.ok()?.path().join("schedstat");
        // A thread may end between the listing and the read.
        ns += fs::read_to_string(path).ok().and_then(|text| first_number(&text)).unwrap_or(0);
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Fields are counted after the command's name, which may contain spaces and brackets.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Cpu { ns, user_ticks: fields.get(11)?.parse().ok()?, system_ticks: fields.get(12)?.parse().ok()? })
}

/// Current CPU time of several processes; None unless all exist.
pub fn cpu_of_all(pids: &[u32]) -> Option<Cpu> {
    let all = pids.iter().map(|&pid| cpu(pid)).collect::<Option<Vec<_>>>()?;
    all.into_iter().reduce(|a, b| Cpu {
        ns: a.ns + b.ns,
        user_ticks: a.user_ticks + b.user_ticks,
        system_ticks: a.system_ticks + b.system_ticks,
    })
}

/// CPU time of one thread of this process, in ns.
pub fn thread_cpu_ns(thread: u32) -> Option<u64> {
    first_number(&fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?)
}

#[derive(Clone, Default, Serialize, Debug)]
pub struct Memory {
    pub rss: u64,
    /// Proportional set size: shared pages are divided among their users.
    pub pss: u64,
    /// Anonymous memory: heap and stacks.
    pub anonymous: u64,
}

pub fn memory(pid: u32) -> Option<Memory> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    Some(Memory { rss: kib(&text, "Rss:")?, pss: kib(&text, "Pss:")?, anonymous: kib(&text, "Anonymous:")? })
}

/// Current memory of several processes; None unless all exist.
pub fn memory_of_all(pids: &[u32]) -> Option<Memory> {
    let all = pids.iter().map(|&pid| memory(pid)).collect::<Option<Vec<_>>>()?;
    all.into_iter().reduce(|a, b| Memory {
        rss: a.rss + b.rss,
        pss: a.pss + b.pss,
        anonymous: a.anonymous + b.anonymous,
    })
}

/// The machine's kernel memory, in bytes.
#[derive(Clone, Default, Serialize, Debug)]
pub struct Kernel {
    /// Slab caches: sockets, files, epoll items.
    pub slab: u64,
    /// Slab caches that cannot be reclaimed: without dentries and the like.
    pub slab_unreclaimable: u64,
    pub tcp_buffers: u64,
    pub tcp_sockets: u64,
}

pub fn kernel() -> Option<Kernel> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let sockets = fs::read_to_string("/proc/net/sockstat").ok()?;
    let tcp: Vec<&str> = sockets.lines().find(|line| line.starts_with("TCP:"))?.split_whitespace().collect();
    let value_of =
        |key| tcp.iter().position(|&word| word == key).and_then(|i| tcp.get(i + 1)?.parse::<u64>().ok());
    Some(Kernel {
        slab: kib(&text, "Slab:")?,
        slab_unreclaimable: kib(&text, "SUnreclaim:")?,
        tcp_buffers: value_of("mem")? * 4096,
        tcp_sockets: value_of("inuse")?,
    })
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(first_number(&line[key.len()..])? * 1024)
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_costs() {
        let pid = std::process::id();
        assert!(cpu(pid).is_some());
        let twice = memory_of_all(&[pid, pid]).expect("it is there");
        assert!(twice.rss > memory(pid).expect("it is there").rss);
        let memory = memory(pid).expect("Linux tells a process's memory");
        assert!(memory.rss >= memory.pss && memory.pss > 0);
        assert!(kernel().is_some_and(|kernel| kernel.slab >= kernel.slab_unreclaimable));
    }

    #[test]
    fn a_process_that_is_not_there_has_none() {
        assert!(cpu(u32::MAX).is_none());
        assert!(cpu_of_all(&[std::process::id(), u32::MAX]).is_none());
        assert!(cpu_of_all(&[]).is_none() && memory_of_all(&[]).is_none());
        assert!(memory(u32::MAX).is_none());
    }
}
