//! How soon and how completely the speed of one stream is back after a burst. Pure.
//!
//! The speed is back at the end of the first window of 16 tokens whose pace is 0.9 of the pace
//! before the burst: the median of the windows of an answer to the same prompt.

use paceline_client::answer::Answer;

use crate::load::Sent;
use crate::requests::{RequestMeans, RequestTimes};
use crate::statistics::Estimate;

/// Tokens of a window: at least as many as a cycle can accept, so that a cycle is not a window.
const WINDOW: usize = 16;
/// Share of the pace before the burst from which on the speed is back. One window is known to about
/// a tenth on a machine with other work.
const BACK: f64 = 0.9;

/// A window of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Window {
    /// Receipt of its last token.
    end_ns: i64,
    /// Tokens per second.
    tok_s: f64,
}

/// The windows of an answer, from its first token on.
fn windows(answer: &Answer) -> Vec<Window> {
    let mut messages =
        answer.stamps.iter().map(|(tokens, _)| *tokens).zip(answer.received_ns.iter().copied());
    let Some((_, mut begin_ns)) = messages.next() else { return vec![] };
    let (mut windows, mut tokens) = (vec![], 0);
    for (more, end_ns) in messages {
        tokens += more;
        if tokens >= WINDOW {
            // Tokens that arrived together have no pace.
            let seconds = (end_ns - begin_ns).max(1) as f64 / 1e9;
            windows.push(Window { end_ns, tok_s: tokens as f64 / seconds });
            (begin_ns, tokens) = (end_ns, 0);
        }
    }
    windows
}

/// One stream alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alone {
    /// Milliseconds to the first token.
    pub ttft_ms: f64,
    /// Tokens per second after the first one.
    pub tok_s: f64,
}

impl Alone {
    /// `None` of an answer without two tokens at different times.
    pub fn of(sent: &Sent) -> Option<Self> {
        let means = RequestMeans::of(&[RequestTimes::of(sent)?])?;
        Some(Self { ttft_ms: means.ttft_ms, tok_s: 1e3 / means.tpot_ms? })
    }
}

/// Milliseconds from the end of a burst until the speed of one stream is back. `None` if it is not
/// until the end of the answer `after`, or if an answer is shorter than a window.
pub fn recovered_ms(before: &Answer, after: &Answer, burst_end_ns: i64) -> Option<f64> {
    let paces: Vec<f64> = windows(before).iter().map(|window| window.tok_s).collect();
    let pace = Estimate::of(&paces)?.median * BACK;
    let back = windows(after).into_iter().find(|window| window.tok_s >= pace)?;
    Some((back.end_ns - burst_end_ns) as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer whose messages have this number of tokens each, received at these milliseconds.
    fn answer(tokens: usize, received_ms: &[i64]) -> Answer {
        Answer {
            stamps: received_ms.iter().map(|_| (tokens, 0)).collect(),
            received_ns: received_ms.iter().map(|ms| ms * 1_000_000).collect(),
            token_ids: vec![7; tokens * received_ms.len()],
            ..Answer::default()
        }
    }

    #[test]
    fn a_window_begins_with_the_end_of_the_one_before() {
        // The tokens of the first message are prefill's.
        let found = windows(&answer(8, &[10, 20, 30, 50, 70, 75]));
        let expected = [
            Window { end_ns: 30_000_000, tok_s: 800.0 },
            Window { end_ns: 70_000_000, tok_s: 400.0 },
        ];
        assert_eq!(found, expected);
        assert_eq!(windows(&answer(8, &[])), []);
        assert_eq!(windows(&answer(1, &[10, 20])), []);
    }

    #[test]
    fn the_speed_is_back_with_the_first_window_at_the_old_pace() {
        let before = answer(16, &[0, 20, 40, 60]);
        let after = answer(16, &[1_030, 1_080, 1_110, 1_132, 1_152]);
        // Windows of 50, 30, 22 and 20 ms; 0.9 of the old pace is one of 22.2 ms.
        assert_eq!(recovered_ms(&before, &after, 1_000_000_000), Some(132.0));
        let never = answer(16, &[1_030, 1_080, 1_130]);
        assert_eq!(recovered_ms(&before, &never, 1_000_000_000), None);
        assert_eq!(recovered_ms(&answer(16, &[0]), &after, 1_000_000_000), None);
    }

    #[test]
    fn one_stream_has_a_speed_after_its_first_token() {
        let sent = Sent { answer: answer(1, &[30, 40, 50]), sent_ns: 20_000_000 };
        assert_eq!(Alone::of(&sent), Some(Alone { ttft_ms: 10.0, tok_s: 100.0 }));
        assert_eq!(Alone::of(&Sent { answer: answer(1, &[30]), sent_ns: 0 }), None);
    }
}
