//! Numbers of stored blocks are those of the Python package gguf, bit for bit.

use paceline_checkpoint::gguf::{BlockType, expand};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const GOLDEN: &str = include_str!("golden/blocks.json");

/// Where scales and offsets are in a block of this type.
fn floats(kind: BlockType) -> &'static [usize] {
    match kind {
        BlockType::F32 => &[2],
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => &[0, 2],
        BlockType::Q6K => &[208],
        _ => &[0],
    }
}

/// The bytes of golden/blocks.py.
fn blocks(kind: BlockType, count: usize) -> Vec<u8> {
    let (mut state, size) = (1_u64, kind.bytes() as usize);
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let mut bytes: Vec<u8> = (0..size * count).map(|_| next()).collect();
    for block in bytes.chunks_exact_mut(size) {
        floats(kind).iter().for_each(|at| block[at + 1] &= 0xBF);
    }
    bytes
}

#[test]
fn random_blocks_have_the_numbers_of_the_reference() {
    let golden: Value = serde_json::from_str(GOLDEN).expect("JSON");
    let count = golden["blocks"].as_u64().expect("a number") as usize;
    let digests = golden["sha256"].as_object().expect("digests");
    assert_eq!(digests.len(), 11);
    for (name, expected) in digests {
        let kind = BlockType::ALL.into_iter().find(|kind| kind.name() == name).expect(name);
        let mut values = vec![0.0; count * kind.values() as usize];
        expand(kind, &blocks(kind, count), &mut values).expect("decoded");
        let bits: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let digest = Sha256::digest(&bits);
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, expected.as_str().expect("hexadecimal"), "{name}");
    }
}
