//! Wrong keys cost time: five a second of one peer are answered at once, and each further one later
//! than the one before. No clock here (I10).
//!
//! Requests with right keys never wait, so that a client that shares its address with an attacker
//! is not disturbed. A key has 256 random bits; the pause is against floods and against keys that
//! people made up.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use paceline_vocabulary::Millis;

use super::peer::Peer;

/// Wrong keys a second that are answered at once.
const PER_SECOND: u64 = 5;
/// One wrong key's share of a second.
const COST_MS: u64 = 1_000 / PER_SECOND;
/// Longest pause in milliseconds. A request that waits occupies memory and a stream.
const MOST_MS: u64 = 10_000;
/// Peers that are counted one by one. All others share one count.
const MAX_PEERS: usize = 4_096;

/// Counts the wrong keys of each peer.
#[derive(Debug, Default)]
pub struct Throttle {
    /// The time until which each peer has used its share. `None` stands for all peers above
    /// [`MAX_PEERS`].
    paid: HashMap<Option<Peer>, Millis>,
}

impl Throttle {
    /// Counts a wrong key from `peer`. Returns how long its answer has to wait.
    pub fn failed(&mut self, peer: IpAddr, now: Millis) -> Duration {
        let mut peer = Some(Peer::from(peer));
        if !self.paid.contains_key(&peer) && self.paid.len() >= MAX_PEERS {
            self.paid.retain(|_, paid| *paid > now);
            if self.paid.len() >= MAX_PEERS {
                peer = None;
            }
        }
        let paid = self.paid.entry(peer).or_insert(now);
        *paid = Millis(paid.0.max(now.0) + COST_MS).min(now + MOST_MS + 1_000);
        // A second's worth is free.
        Duration::from_millis(paid.since(now).saturating_sub(1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(throttle: &mut Throttle, peer: &str, now: u64) -> u64 {
        throttle.failed(peer.parse().expect("an address"), Millis(now)).as_millis() as u64
    }

    #[test]
    fn five_a_second_are_free_and_the_next_ones_wait() {
        let mut throttle = Throttle::default();
        let pauses: Vec<u64> = (0..8).map(|_| ms(&mut throttle, "192.0.2.1", 0)).collect();
        assert_eq!(pauses, [0, 0, 0, 0, 0, 200, 400, 600]);
        assert_eq!(ms(&mut throttle, "192.0.2.2", 0), 0, "another peer");
        assert_eq!(ms(&mut throttle, "::ffff:192.0.2.1", 0), 800, "the same one");
        // Five a second for ever are never held up.
        let steady: u64 = (0..1_000).map(|n| ms(&mut throttle, "192.0.2.3", n * 200)).sum();
        assert_eq!(steady, 0);
        assert_eq!(ms(&mut throttle, "192.0.2.1", 60_000), 0, "paid");
    }

    #[test]
    fn a_network_is_one_peer_and_pauses_are_bounded() {
        let mut throttle = Throttle::default();
        let pauses: Vec<u64> =
            (0..100).map(|n| ms(&mut throttle, &format!("2001:db8::{n:x}"), 0)).collect();
        assert_eq!((pauses[4], pauses[5], pauses[99]), (0, 200, MOST_MS));
        assert_eq!(ms(&mut throttle, "2001:db8:0:1::1", 0), 0);
    }

    #[test]
    fn peers_above_the_bound_share_one_debt() {
        let mut throttle = Throttle::default();
        for n in 0..MAX_PEERS {
            let [.., high, low] = (n as u64).to_be_bytes();
            assert_eq!(ms(&mut throttle, &format!("10.0.{high}.{low}"), 0), 0);
        }
        let pauses: Vec<u64> =
            (0..7).map(|n| ms(&mut throttle, &format!("10.1.0.{n}"), 0)).collect();
        assert_eq!(pauses, [0, 0, 0, 0, 0, 200, 400]);
        assert_eq!(throttle.paid.len(), MAX_PEERS + 1);
        // Peers whose time has passed are removed.
        assert_eq!(ms(&mut throttle, "10.2.0.1", 5_000), 0);
        assert!(throttle.paid.len() < 10, "{}", throttle.paid.len());
    }
}
