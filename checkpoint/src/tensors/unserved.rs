//! Tensors of parts that this version does not serve.

/// Names of tensors of parts that a family's checkpoints may have and this version does not serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unserved {
    /// Beginnings of names.
    pub prefixes: &'static [&'static str],
    /// Ends of names.
    pub suffixes: &'static [&'static str],
}

impl Unserved {
    /// Ends of names in old checkpoints: rotary frequencies, which follow from the config.
    pub const FREQUENCIES: &[&str] = &[".rotary_emb.inv_freq"];
    /// These alone.
    pub const FREQUENCIES_ALONE: Self = Self { prefixes: &[], suffixes: Self::FREQUENCIES };

    /// The part that a tensor belongs to, if it is one of these.
    pub fn part_of(&self, name: &str) -> Option<&'static str> {
        let begins = self.prefixes.iter().find(|prefix| name.starts_with(**prefix));
        begins.or_else(|| self.suffixes.iter().find(|suffix| name.ends_with(**suffix))).copied()
    }
}
