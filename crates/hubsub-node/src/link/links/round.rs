//! One look at a peer: its addresses in turn, those that it had when the round
//! began. A round owns its list, so that a change of the peer's registration in
//! the middle neither skips an address nor counts one twice.

use std::net::SocketAddr;

/// How often one look is made anew where it was closed without a word: a process that dies closes the port of each of
/// its shards, and whoever listens there and closes at once is left in peace then.
pub(super) const RETRIES_MAX: usize = 16;

/// See the module.
#[derive(Debug)]
pub(super) struct Round {
    /// As they were registered.
    registered: Box<[SocketAddr]>,
    /// Place of the address to begin with.
    first: usize,
    /// Addresses tried, and those of them that refused a connection.
    tried: usize,
    refusing: usize,
    /// How often an address took the connection and closed it.
    retries: usize,
}

impl Round {
    /// Over these addresses, beginning with the one at `first`, modulo their number.
    pub fn new(registered: &[SocketAddr], first: usize) -> Round {
        Round { registered: registered.into(), first, tried: 0, refusing: 0, retries: 0 }
    }

    /// The address that is tried; none when all were.
    pub fn address(&self) -> Option<SocketAddr> {
        (self.tried < self.registered.len()).then(|| self.registered[self.place()])
    }

    /// Place of that address in the list.
    pub fn place(&self) -> usize {
        (self.first + self.tried) % self.registered.len().max(1)
    }

    /// The address gave no connection: the next one is tried.
    pub fn failed(&mut self, is_refusing: bool) {
        self.tried += 1;
        self.refusing += usize::from(is_refusing);
    }

    /// The address took the connection and closed it without a word. Whether it is tried again.
    pub fn again(&mut self) -> bool {
        self.retries += 1;
        self.retries <= RETRIES_MAX
    }

    /// Whether it shows that nobody is at any of these addresses: each was tried and refused.
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
