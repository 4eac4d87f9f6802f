//! Choices of a caller that loads a drafter.

/// Bits of a drafter's weights (`drafter.quantize`). They change what is proposed, never what a
/// client gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quantize {
    /// As in the files.
    #[default]
    None,
    /// 8 bits an element, groups of 64.
    Q8,
    /// 4 bits an element, groups of 64; the projection of the hidden states stays at 8.
    Q4,
}

impl Quantize {
    /// Bits an element, if not as loaded.
    pub(super) fn bits(self) -> Option<i32> {
        match self {
            Self::None => None,
            Self::Q8 => Some(8),
            Self::Q4 => Some(4),
        }
    }
}

/// Choices of a caller that loads a drafter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftOptions {
    /// Bits of its weights.
    pub quantize: Quantize,
    /// How many of the target's first ids a head of kind `mtp` can propose, beside special tokens;
    /// 0 = all ids. Other kinds propose what they were made for.
    pub draft_vocabulary: u32,
}

impl From<Quantize> for DraftOptions {
    fn from(quantize: Quantize) -> Self {
        Self { quantize, ..Self::default() }
    }
}
