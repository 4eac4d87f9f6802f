//! Requests at which the target ended. A request that ended the target twice is refused for a time,
//! so that it does not end the target for all others again and again.
//!
//! Resumed requests are admitted one at a time until each has its first new tokens. An end of the
//! target counts against the one that was being admitted, or against the only one that ran. A
//! request with new tokens since its last admission is never counted against: the target worked on
//! it without harm, and if a later token ends the target, the resumed request ends it before that
//! token. A request that is served is cleared.
//!
//! Only the key that sent the request is refused: another key's request is not judged by it.

use paceline_vocabulary::{KeyId, Millis};

use crate::request::{Fingerprint, RequestSummary};

/// Ends of the target after which a request is refused.
const MOST_FALLS: u32 = 2;
/// How long a request is refused, and how long an end of the target is remembered.
const REFUSED_MS: u64 = 600_000;
/// Requests that are remembered. The oldest is forgotten first.
const MOST_SUSPECTS: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Suspect {
    key: KeyId,
    fingerprint: Fingerprint,
    falls: u32,
    until: Millis,
}

impl Suspect {
    fn is(&self, request: &RequestSummary) -> bool {
        (self.key, self.fingerprint) == (request.key, request.fingerprint)
    }
}

/// The requests at which the target ended.
#[derive(Debug, Default)]
pub struct Suspects(Vec<Suspect>);

impl Suspects {
    /// The target ended at this request.
    pub fn fell(&mut self, request: &RequestSummary, now: Millis) {
        let falls = self.falls(request, now) + 1;
        self.clear(request);
        if self.0.len() >= MOST_SUSPECTS {
            self.0.remove(0);
        }
        let (key, fingerprint) = (request.key, request.fingerprint);
        self.0.push(Suspect { key, fingerprint, falls, until: now + REFUSED_MS });
    }

    /// The request was served.
    pub fn clear(&mut self, request: &RequestSummary) {
        self.0.retain(|suspect| !suspect.is(request));
    }

    /// Whether the request is refused.
    pub fn refuses(&self, request: &RequestSummary, now: Millis) -> bool {
        self.falls(request, now) >= MOST_FALLS
    }

    fn falls(&self, request: &RequestSummary, now: Millis) -> u32 {
        let known = self.0.iter().find(|suspect| suspect.is(request));
        known.filter(|suspect| now < suspect.until).map_or(0, |suspect| suspect.falls)
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::RouteWish;

    use super::*;

    const KEY: KeyId = KeyId(1);

    fn request(key: KeyId, content: u64) -> RequestSummary {
        RequestSummary {
            key,
            prompt_tokens: 1,
            max_tokens: 1,
            context_tokens: 1,
            deadline: None,
            wish: RouteWish::Auto,
            patches: 0,
            resumed: false,
            fingerprint: Fingerprint(content),
            model: None,
        }
    }

    #[test]
    fn a_request_is_refused_after_two_falls_and_for_ten_minutes() {
        let (one, other) = (request(KEY, 1), request(KEY, 2));
        let mut suspects = Suspects::default();
        suspects.fell(&one, Millis(5));
        assert!(!suspects.refuses(&one, Millis(6)));
        suspects.fell(&other, Millis(6));
        suspects.fell(&one, Millis(7));
        assert!(suspects.refuses(&one, Millis(7)) && !suspects.refuses(&other, Millis(7)));
        assert!(suspects.refuses(&one, Millis(600_006)));
        assert!(!suspects.refuses(&one, Millis(600_007)));
        // What is forgotten counts from the beginning.
        suspects.fell(&one, Millis(700_000));
        assert!(!suspects.refuses(&one, Millis(700_000)));
    }

    #[test]
    fn the_same_content_of_another_key_is_not_refused() {
        let (mine, theirs) = (request(KEY, 1), request(KeyId(2), 1));
        let mut suspects = Suspects::default();
        suspects.fell(&mine, Millis(0));
        suspects.fell(&mine, Millis(0));
        assert!(suspects.refuses(&mine, Millis(0)));
        assert!(!suspects.refuses(&theirs, Millis(0)));
        // That another key's request is served does not clear it either.
        suspects.clear(&theirs);
        assert!(suspects.refuses(&mine, Millis(0)));
    }

    #[test]
    fn a_request_that_is_served_is_cleared() {
        let one = request(KEY, 1);
        let mut suspects = Suspects::default();
        suspects.fell(&one, Millis(0));
        suspects.clear(&one);
        suspects.fell(&one, Millis(1));
        assert!(!suspects.refuses(&one, Millis(1)));
    }

    #[test]
    fn the_list_is_bounded() {
        let mut suspects = Suspects::default();
        for content in 0..1_000 {
            suspects.fell(&request(KEY, content), Millis(0));
            suspects.fell(&request(KEY, content), Millis(0));
        }
        assert_eq!(suspects.0.len(), MOST_SUSPECTS);
        assert!(suspects.refuses(&request(KEY, 999), Millis(0)));
    }
}
