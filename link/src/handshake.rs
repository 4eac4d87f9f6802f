//! Whether a target and a drafter go together. Pure; both sides ask the same questions.

use std::fmt::Display;

use paceline_vocabulary::link::{Hello, ProposalKind, Welcome};

/// Version of link.proto that this crate speaks.
pub const VERSION: u32 = 8;
/// Rows that a drafter's longest block may have, the bonus token included.
const BLOCK_ROWS: std::ops::RangeInclusive<u32> = 2..=64;

/// A property in which the two sides differ: the reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: expected {expected}, found {found}")]
pub struct Mismatch {
    /// The property.
    pub what: String,
    /// Value that the asking side needs.
    pub expected: String,
    /// Value that the other side has.
    pub found: String,
}

impl Mismatch {
    /// A difference in `what`.
    pub fn new(what: impl Display, expected: impl Display, found: impl Display) -> Self {
        Self { what: what.to_string(), expected: expected.to_string(), found: found.to_string() }
    }
}

/// The drafter's side: whether a Hello that came over link `generation` goes with the Welcome that
/// would answer it.
///
/// # Errors
/// The first difference: the reason of a Refusal.
pub fn check_hello(hello: &Hello, welcome: &Welcome, generation: u64) -> Result<(), Mismatch> {
    expect("link version", VERSION, hello.version)?;
    expect("link generation", generation, hello.generation)?;
    for (what, found) in [
        ("hidden size", hello.hidden_size),
        ("vocabulary", hello.vocab_size),
        ("layers", hello.n_layers),
        ("context length", hello.context_length),
        ("sessions", hello.max_sessions),
    ] {
        if found == 0 {
            let what = format!("{what} of the target");
            return Err(Mismatch::new(what, "a positive number", found));
        }
    }
    check_pair(hello, welcome)
}

/// The target's side: whether the Welcome that answered its Hello goes with it.
///
/// # Errors
/// The first difference.
pub fn check_welcome(hello: &Hello, welcome: &Welcome) -> Result<(), Mismatch> {
    expect("link version", VERSION, welcome.version)?;
    expect("link generation", hello.generation, welcome.generation)?;
    check_pair(hello, welcome)
}

fn check_pair(hello: &Hello, welcome: &Welcome) -> Result<(), Mismatch> {
    if has_to_do_with_hidden_states(welcome) {
        expect("hidden size", hello.hidden_size, welcome.hidden_size)?;
    }
    check_vocabulary(hello, welcome)?;
    if let Some(layers) = welcome.target_layers {
        expect("layers of the target", hello.n_layers, layers)?;
    }
    check_features(hello, welcome)?;
    if !BLOCK_ROWS.contains(&welcome.block_size) {
        let (low, high) = BLOCK_ROWS.into_inner();
        return Err(Mismatch::new("block size", format!("{low} to {high}"), welcome.block_size));
    }
    if let Some(mask_id) = welcome.mask_id.filter(|id| *id >= hello.vocab_size) {
        let expected = format!("an id below {}", hello.vocab_size);
        return Err(Mismatch::new("mask id", expected, mask_id));
    }
    match welcome.logit_softcap {
        Some(cap) if !cap.is_finite() || cap < 0.0 => {
            Err(Mismatch::new("logit softcap", "0 or a positive number", cap))
        }
        _ => Ok(()),
    }
}

/// Each id has to be the same token for both. If one of the two has no tokenizer, the rows of the
/// output heads are compared in its place. Two models with the same tokens may have heads of
/// different sizes: rows after the last token are padding, which no drafter proposes to a target
/// that does not have them.
fn check_vocabulary(hello: &Hello, welcome: &Welcome) -> Result<(), Mismatch> {
    match welcome.vocab_size {
        _ if !hello.token_digest.is_empty() && !welcome.token_digest.is_empty() => {
            expect("tokens of the tokenizer", &hello.token_digest, &welcome.token_digest)
        }
        None => Ok(()),
        Some(found) => expect("vocabulary", hello.vocab_size, found),
    }
}

fn has_to_do_with_hidden_states(welcome: &Welcome) -> bool {
    welcome.proposal == ProposalKind::Hidden
        || welcome.embeddings
        || !welcome.feature_layers.is_empty()
}

fn check_features(hello: &Hello, welcome: &Welcome) -> Result<(), Mismatch> {
    let what = "feature layers";
    if welcome.feature_layers.is_empty() && !welcome.token_ids {
        return Err(Mismatch::new(what, "at least one, or token ids", "none"));
    }
    for (at, layer) in welcome.feature_layers.iter().enumerate() {
        if *layer >= hello.n_layers {
            return Err(Mismatch::new(what, format!("layers below {}", hello.n_layers), layer));
        }
        if welcome.feature_layers[..at].contains(layer) {
            return Err(Mismatch::new(what, "each once", format!("{layer} again")));
        }
    }
    Ok(())
}

fn expect<T: PartialEq + Display>(what: &str, expected: T, found: T) -> Result<(), Mismatch> {
    if expected == found { Ok(()) } else { Err(Mismatch::new(what, expected, found)) }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::TensorType;

    use super::*;

    type Change = fn(&mut Hello, &mut Welcome);

    fn pair() -> (Hello, Welcome) {
        let hello = Hello {
            version: VERSION,
            generation: 3,
            hidden_size: 64,
            vocab_size: 1000,
            n_layers: 8,
            element: TensorType::F32,
            token_digest: "aa".into(),
            context_length: 4096,
            max_sessions: 32,
        };
        let welcome = Welcome {
            version: VERSION,
            generation: 3,
            kind: "dflash".into(),
            fingerprint: "dflash 1".into(),
            proposal: ProposalKind::Hidden,
            hidden_size: 64,
            vocab_size: Some(1000),
            target_layers: Some(8),
            feature_layers: vec![1, 7, 4],
            block_size: 16,
            embeddings: true,
            token_ids: false,
            reads_at_once: false,
            mask_id: Some(999),
            element: TensorType::F32,
            token_digest: "aa".into(),
            logit_softcap: None,
            context_length: None,
        };
        (hello, welcome)
    }

    /// A drafter without weights has no hidden size.
    fn reads_ids_alone(welcome: &mut Welcome) {
        welcome.feature_layers.clear();
        (welcome.token_ids, welcome.embeddings, welcome.mask_id) = (true, false, None);
        (welcome.proposal, welcome.hidden_size) = (ProposalKind::Tokens, 0);
    }

    fn text(checked: Result<(), Mismatch>) -> String {
        checked.expect_err("they do not go together").to_string()
    }

    #[test]
    fn pairs_without_a_difference_go_together() {
        let same: [Change; 11] = [
            |_, _| {},
            |_, w| reads_ids_alone(w),
            |_, w| (w.proposal, w.vocab_size) = (ProposalKind::Tokens, Some(900)),
            |_, w| (w.proposal, w.vocab_size) = (ProposalKind::Tokens, Some(1001)),
            |_, w| w.vocab_size = Some(1001),
            |_, w| w.vocab_size = None,
            |_, w| w.target_layers = None,
            |_, w| (w.embeddings, w.mask_id) = (false, None),
            |_, w| w.token_digest.clear(),
            |h, _| h.token_digest.clear(),
            |_, w| (w.block_size, w.logit_softcap) = (64, Some(30.0)),
        ];
        for change in same {
            let (mut hello, mut welcome) = pair();
            change(&mut hello, &mut welcome);
            assert_eq!(check_welcome(&hello, &welcome), Ok(()));
            assert_eq!(check_hello(&hello, &welcome, 3), Ok(()));
        }
    }

    #[test]
    fn both_sides_refuse_each_difference_with_expected_and_found() {
        let faults: [(&str, Change); 13] = [
            ("hidden size: expected 64, found 65", |_, w| w.hidden_size = 65),
            ("vocabulary: expected 1000, found 1001", |h, w| {
                w.vocab_size = Some(1001);
                h.token_digest.clear();
            }),
            ("vocabulary: expected 1000, found 900", |_, w| {
                (w.proposal, w.vocab_size) = (ProposalKind::Tokens, Some(900));
                w.token_digest.clear();
            }),
            ("layers of the target: expected 8, found 9", |_, w| w.target_layers = Some(9)),
            ("feature layers: expected at least one, or token ids, found none", |_, w| {
                w.feature_layers.clear()
            }),
            ("feature layers: expected layers below 8, found 8", |_, w| w.feature_layers.push(8)),
            ("feature layers: expected each once, found 1 again", |_, w| w.feature_layers.push(1)),
            ("block size: expected 2 to 64, found 1", |_, w| w.block_size = 1),
            ("block size: expected 2 to 64, found 65", |_, w| w.block_size = 65),
            ("mask id: expected an id below 1000, found 1000", |_, w| w.mask_id = Some(1000)),
            ("tokens of the tokenizer: expected aa, found bb", |_, w| {
                (w.vocab_size, w.token_digest) = (Some(900), "bb".into())
            }),
            ("logit softcap: expected 0 or a positive number, found NaN", |_, w| {
                w.logit_softcap = Some(f32::NAN)
            }),
            ("logit softcap: expected 0 or a positive number, found -1", |_, w| {
                w.logit_softcap = Some(-1.0)
            }),
        ];
        for (expected, change) in faults {
            let (mut hello, mut welcome) = pair();
            change(&mut hello, &mut welcome);
            for refused in [check_welcome(&hello, &welcome), check_hello(&hello, &welcome, 3)] {
                assert_eq!(text(refused), expected);
            }
        }
    }

    #[test]
    fn each_side_checks_the_others_version_and_generation() {
        let (hello, welcome) = pair();
        let (mut other, mut reply) = (hello.clone(), welcome.clone());
        (other.version, reply.version) = (VERSION + 1, VERSION + 1);
        let versions = format!("link version: expected {VERSION}, found {}", VERSION + 1);
        assert_eq!(text(check_hello(&other, &welcome, 3)), versions);
        assert_eq!(text(check_welcome(&hello, &reply)), versions);
        reply = Welcome { generation: 2, ..welcome.clone() };
        assert_eq!(text(check_welcome(&hello, &reply)), "link generation: expected 3, found 2");
        assert_eq!(text(check_hello(&hello, &welcome, 4)), "link generation: expected 4, found 3");
        let silent = Hello { max_sessions: 0, ..hello };
        assert_eq!(
            text(check_hello(&silent, &welcome, 3)),
            "sessions of the target: expected a positive number, found 0"
        );
    }
}
