//! Requests at which the target ended. A request that ended the target twice is refused for a time,
//! so that it does not end the target for all others again and again.
//!
//! Resumed requests are admitted one at a time until each has its first new tokens. An end of the
//! target counts against the one that was being admitted, or against the only one that ran. A
//! request that is served is cleared.

use paceline_vocabulary::Millis;

/// Ends of the target after which a request is refused.
const MOST_FALLS: u32 = 2;
/// How long a request is refused, and how long an end of the target is remembered.
const REFUSED_MS: u64 = 600_000;
/// Requests that are remembered. The oldest is forgotten first.
const MOST_SUSPECTS: usize = 64;

/// A request by its content, the same for each submission of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint(pub u64);

#[derive(Clone, Copy, Debug)]
struct Suspect {
    fingerprint: Fingerprint,
    falls: u32,
    until: Millis,
}

/// The requests at which the target ended.
#[derive(Debug, Default)]
pub struct Suspects(Vec<Suspect>);

impl Suspects {
    /// The target ended at this request.
    pub fn fell(&mut self, fingerprint: Fingerprint, now: Millis) {
        let falls = self.falls(fingerprint, now) + 1;
        self.clear(fingerprint);
        if self.0.len() >= MOST_SUSPECTS {
            self.0.remove(0);
        }
        self.0.push(Suspect { fingerprint, falls, until: now + REFUSED_MS });
    }

    /// The request was served.
    pub fn clear(&mut self, fingerprint: Fingerprint) {
        self.0.retain(|suspect| suspect.fingerprint != fingerprint);
    }

    /// Whether the request is refused.
    pub fn refuses(&self, fingerprint: Fingerprint, now: Millis) -> bool {
        self.falls(fingerprint, now) >= MOST_FALLS
    }

    fn falls(&self, fingerprint: Fingerprint, now: Millis) -> u32 {
        let known = self.0.iter().find(|suspect| suspect.fingerprint == fingerprint);
        known.filter(|suspect| now < suspect.until).map_or(0, |suspect| suspect.falls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_refused_after_two_falls_and_for_ten_minutes() {
        let (one, other) = (Fingerprint(1), Fingerprint(2));
        let mut suspects = Suspects::default();
        suspects.fell(one, Millis(5));
        assert!(!suspects.refuses(one, Millis(6)));
        suspects.fell(other, Millis(6));
        suspects.fell(one, Millis(7));
        assert!(suspects.refuses(one, Millis(7)) && !suspects.refuses(other, Millis(7)));
        assert!(suspects.refuses(one, Millis(600_006)));
        assert!(!suspects.refuses(one, Millis(600_007)));
        // What is forgotten counts from the beginning.
        suspects.fell(one, Millis(700_000));
        assert!(!suspects.refuses(one, Millis(700_000)));
    }

    #[test]
    fn a_request_that_is_served_is_cleared() {
        let mut suspects = Suspects::default();
        suspects.fell(Fingerprint(1), Millis(0));
        suspects.clear(Fingerprint(1));
        suspects.fell(Fingerprint(1), Millis(1));
        assert!(!suspects.refuses(Fingerprint(1), Millis(1)));
    }

    #[test]
    fn the_list_is_bounded() {
        let mut suspects = Suspects::default();
        for at in 0..1_000 {
            suspects.fell(Fingerprint(at), Millis(0));
            suspects.fell(Fingerprint(at), Millis(0));
        }
        assert_eq!(suspects.0.len(), MOST_SUSPECTS);
        assert!(suspects.refuses(Fingerprint(999), Millis(0)));
    }
}
