//! Whether a target and a drafter go together. Pure; both sides ask the same questions.

use paceline_proto::internal::v1::{Hello, ProposalKind, TensorType, Welcome};

use crate::tensor::number_bytes;

/// Version of link.proto that this crate speaks.
pub const VERSION: u32 = 2;
/// Blocks have so many rows, the bonus token included.
pub const BLOCK_ROWS: std::ops::RangeInclusive<u32> = 2..=64;

/// The drafter's side: whether a Hello that came over link `generation` goes with the Welcome it
/// would get.
///
/// # Errors
/// What does not fit, expected and found: the reason of a Refusal.
pub fn check_hello(hello: &Hello, welcome: &Welcome, generation: u64) -> Result<(), String> {
    expect("link version", VERSION, hello.version)?;
    expect("link generation", generation, hello.generation)?;
    check_type("the target", hello.r#type)?;
    for (what, found) in [
        ("hidden size", hello.hidden_size),
        ("vocabulary", hello.vocab_size),
        ("layers", hello.n_layers),
        ("context length", hello.context_length),
        ("sessions", hello.max_sessions),
    ] {
        if found == 0 {
            return Err(format!("{what} of the target: expected a positive number, found 0"));
        }
    }
    check_pair(hello, welcome)
}

/// The target's side: whether the Welcome it got goes with its Hello.
///
/// # Errors
/// What does not fit, expected and found.
pub fn check_welcome(hello: &Hello, welcome: &Welcome) -> Result<(), String> {
    expect("link version", VERSION, welcome.version)?;
    expect("link generation", hello.generation, welcome.generation)?;
    check_pair(hello, welcome)
}

fn check_pair(hello: &Hello, welcome: &Welcome) -> Result<(), String> {
    if matches!(ProposalKind::try_from(welcome.proposal), Err(_) | Ok(ProposalKind::Unspecified)) {
        return Err(format!(
            "proposal kind: expected hidden rows or tokens, found {}",
            welcome.proposal
        ));
    }
    check_type("the drafter", welcome.r#type)?;
    expect("hidden size", hello.hidden_size, welcome.hidden_size)?;
    if welcome.vocab_size != 0 {
        expect("vocabulary", hello.vocab_size, welcome.vocab_size)?;
    }
    if welcome.target_layers != 0 {
        expect("layers of the target", hello.n_layers, welcome.target_layers)?;
    }
    if welcome.tap_layers.is_empty() {
        return Err("tap layers: expected at least one, found none".into());
    }
    for (at, layer) in welcome.tap_layers.iter().enumerate() {
        if *layer >= hello.n_layers {
            return Err(format!(
                "tap layers: expected layers below {}, found {layer}",
                hello.n_layers
            ));
        }
        if welcome.tap_layers[..at].contains(layer) {
            return Err(format!("tap layers: expected each once, found {layer} again"));
        }
    }
    if !BLOCK_ROWS.contains(&welcome.block_size) {
        let (low, high) = BLOCK_ROWS.into_inner();
        return Err(format!("block size: expected {low} to {high}, found {}", welcome.block_size));
    }
    if welcome.mask_id >= hello.vocab_size {
        return Err(format!(
            "mask id: expected an id below {}, found {}",
            hello.vocab_size, welcome.mask_id
        ));
    }
    if !hello.tokenizer_sha256.is_empty() && !welcome.tokenizer_sha256.is_empty() {
        expect("SHA-256 of the tokenizer", &hello.tokenizer_sha256, &welcome.tokenizer_sha256)?;
    }
    if !welcome.logit_softcap.is_finite() || welcome.logit_softcap < 0.0 {
        return Err(format!(
            "logit softcap: expected 0 or a positive number, found {}",
            welcome.logit_softcap
        ));
    }
    Ok(())
}

fn expect<T: PartialEq + std::fmt::Display>(
    what: &str,
    expected: T,
    found: T,
) -> Result<(), String> {
    if expected == found {
        Ok(())
    } else {
        Err(format!("{what}: expected {expected}, found {found}"))
    }
}

fn check_type(whose: &str, found: i32) -> Result<(), String> {
    match TensorType::try_from(found).ok().and_then(number_bytes) {
        Some(_) => Ok(()),
        None => {
            Err(format!("type of {whose}'s tensors: expected one of f32, f16, bf16, found {found}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Hello, &mut Welcome);

    fn pair() -> (Hello, Welcome) {
        let hello = Hello {
            version: VERSION,
            generation: 3,
            hidden_size: 64,
            vocab_size: 1000,
            n_layers: 8,
            r#type: TensorType::F32.into(),
            tokenizer_sha256: "aa".into(),
            context_length: 4096,
            max_sessions: 32,
        };
        let welcome = Welcome {
            version: VERSION,
            generation: 3,
            kind: "dflash".into(),
            proposal: ProposalKind::Hidden.into(),
            hidden_size: 64,
            vocab_size: 1000,
            target_layers: 8,
            tap_layers: vec![1, 7, 4],
            block_size: 16,
            mask_id: 999,
            r#type: TensorType::F32.into(),
            tokenizer_sha256: "aa".into(),
            logit_softcap: 0.0,
            context_length: 0,
        };
        (hello, welcome)
    }

    #[test]
    fn pairs_that_go_together() {
        let same: [Change; 6] = [
            |_, _| {},
            |_, w| w.vocab_size = 0,
            |_, w| w.target_layers = 0,
            |_, w| w.tokenizer_sha256.clear(),
            |h, _| h.tokenizer_sha256.clear(),
            |_, w| (w.block_size, w.logit_softcap) = (64, 30.0),
        ];
        for change in same {
            let (mut hello, mut welcome) = pair();
            change(&mut hello, &mut welcome);
            assert_eq!(check_welcome(&hello, &welcome), Ok(()));
            assert_eq!(check_hello(&hello, &welcome, 3), Ok(()));
        }
    }

    #[test]
    fn pairs_that_do_not_are_refused_by_both_sides_with_expected_and_found() {
        let faults: [(&str, Change); 15] = [
            ("hidden size: expected 64, found 65", |_, w| w.hidden_size = 65),
            ("vocabulary: expected 1000, found 1001", |_, w| w.vocab_size = 1001),
            ("layers of the target: expected 8, found 9", |_, w| w.target_layers = 9),
            ("tap layers: expected at least one, found none", |_, w| w.tap_layers.clear()),
            ("tap layers: expected layers below 8, found 8", |_, w| w.tap_layers.push(8)),
            ("tap layers: expected each once, found 1 again", |_, w| w.tap_layers.push(1)),
            ("block size: expected 2 to 64, found 1", |_, w| w.block_size = 1),
            ("block size: expected 2 to 64, found 65", |_, w| w.block_size = 65),
            ("mask id: expected an id below 1000, found 1000", |_, w| w.mask_id = 1000),
            ("SHA-256 of the tokenizer: expected aa, found bb", |_, w| {
                w.tokenizer_sha256 = "bb".into()
            }),
            ("type of the drafter's tensors: expected one of f32, f16, bf16, found 0", |_, w| {
                w.r#type = 0
            }),
            ("type of the drafter's tensors: expected one of f32, f16, bf16, found 7", |_, w| {
                w.r#type = 7
            }),
            ("proposal kind: expected hidden rows or tokens, found 5", |_, w| w.proposal = 5),
            ("logit softcap: expected 0 or a positive number, found NaN", |_, w| {
                w.logit_softcap = f32::NAN
            }),
            ("logit softcap: expected 0 or a positive number, found -1", |_, w| {
                w.logit_softcap = -1.0
            }),
        ];
        for (expected, change) in faults {
            let (mut hello, mut welcome) = pair();
            change(&mut hello, &mut welcome);
            assert_eq!(check_welcome(&hello, &welcome), Err(expected.into()));
            assert_eq!(check_hello(&hello, &welcome, 3), Err(expected.into()));
        }
    }

    #[test]
    fn each_side_checks_the_others_version_and_generation() {
        let (hello, welcome) = pair();
        let (mut other, mut reply) = (hello.clone(), welcome.clone());
        (other.version, reply.version) = (VERSION + 1, VERSION + 1);
        let versions = format!("link version: expected {VERSION}, found {}", VERSION + 1);
        assert_eq!(check_hello(&other, &welcome, 3), Err(versions.clone()));
        assert_eq!(check_welcome(&hello, &reply), Err(versions));
        reply = Welcome { generation: 2, ..welcome.clone() };
        assert_eq!(
            check_welcome(&hello, &reply),
            Err("link generation: expected 3, found 2".into())
        );
        assert_eq!(
            check_hello(&hello, &welcome, 4),
            Err("link generation: expected 4, found 3".into())
        );
        let silent = Hello { max_sessions: 0, ..hello };
        assert_eq!(
            check_hello(&silent, &welcome, 3),
            Err("sessions of the target: expected a positive number, found 0".into())
        );
    }
}
