//! The engine with the demo target and a drafter that proposes what a test wants.

mod bonus;
mod draft_wait;
mod faulty;
mod faulty_target;
pub(crate) mod fixture;
mod log;
mod speed;
mod test_drafter;
mod test_engine;

/// Ids of the shortest prompt: more than two pages of the prefix cache.
const PROMPT: u32 = 150;

/// A prompt. No two prompts have a page in common.
fn prompt(at: u32) -> Vec<u32> {
    (0..PROMPT + at).map(|place| 4 + (place * 7 + 131 * at + place * place / 3) % 4000).collect()
}
