//! Numbers that are the same in each measurement. Pure.

/// The next number of a sequence, by SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom
/// number generators, 2014).
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// A number below `count`, which is at least 1.
pub fn below(state: &mut u64, count: u32) -> u32 {
    ((u64::from(count.max(1)) * (next(state) >> 32)) >> 32) as u32
}
