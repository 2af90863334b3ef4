//! One attempt to reach a peer: its addresses in turn, as registered when the round began. A round owns its
//! list, so a change of the registration neither skips an address nor counts one twice.

use std::net::SocketAddr;

/// How often a probe is repeated after a close without a frame. A dying process closes the port of each of
/// its shards; the limit is for listeners that close every connection immediately.
pub(super) const RETRIES_MAX: usize = 16;

/// One attempt over the addresses of a peer.
#[derive(Debug)]
pub(super) struct Round {
    registered: Box<[SocketAddr]>,
    /// Index of the first address to try.
    first: usize,
    /// Addresses tried, and how many of them refused a connection.
    tried: usize,
    refusing: usize,
    /// How often an address accepted the connection and closed it.
    retries: usize,
}

impl Round {
    /// A round over these addresses, starting at index `first` modulo their number.
    pub fn new(registered: &[SocketAddr], first: usize) -> Round {
        Round { registered: registered.into(), first, tried: 0, refusing: 0, retries: 0 }
    }

    /// The current address; none after the last one.
    pub fn address(&self) -> Option<SocketAddr> {
        (self.tried < self.registered.len()).then(|| self.registered[self.place()])
    }

    pub fn place(&self) -> usize {
        (self.first + self.tried) % self.registered.len().max(1)
    }

    /// The current address failed: the next one is tried.
    pub fn failed(&mut self, is_refusing: bool) {
        self.tried += 1;
        self.refusing += usize::from(is_refusing);
    }

    /// The current address accepted the connection and closed it without a frame. Returns whether it is tried
    /// again.
    pub fn again(&mut self) -> bool {
        self.retries += 1;
        self.retries <= RETRIES_MAX
    }

    /// True if all these addresses refused a connection, which proves that no process listens there.
    pub fn all_refuse(&self, registered: &[SocketAddr]) -> bool {
        self.refusing > 0 && self.refusing == self.registered.len() && *self.registered == *registered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
        ports.iter().map(|&port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
    }

    #[test]
    fn each_address_is_tried_once_from_any_first_one_on() {
        let all = addresses(&[1, 2, 3]);
        for first in 0..7 {
            let mut round = Round::new(&all, first);
            let mut tried = Vec::new();
            while let Some(address) = round.address() {
                assert_eq!(address, all[round.place()]);
                assert!(!round.all_refuse(&all), "not all were tried");
                tried.push(address);
                round.failed(true);
            }
            assert_eq!(tried[0], all[first % 3]);
            tried.sort();
            assert_eq!(tried, all);
            assert!(round.all_refuse(&all));
        }
    }

    #[test]
    fn it_proves_nothing_of_other_addresses_nor_where_one_did_not_refuse() {
        let mut round = Round::new(&addresses(&[1, 2]), 0);
        round.failed(true);
        round.failed(true);
        assert!(!round.all_refuse(&addresses(&[2])) && !round.all_refuse(&addresses(&[1, 2, 3])));
        let mut round = Round::new(&addresses(&[1, 2]), 0);
        round.failed(true);
        round.failed(false);
        assert!(!round.all_refuse(&addresses(&[1, 2])), "one took too long, perhaps");
        assert!(!Round::new(&[], 5).all_refuse(&[]), "nobody was asked");
    }
}
