//! Machines that are not this one, by their names: how much memory a model may use there, and how
//! fast that memory is read. For `paceline inspect --machine "M4 Pro 24 GB"`. Pure.

mod table;

use table::{CHIPS, Chip, Kind};

/// Memory from which on Metal recommends three quarters and not two thirds of it, in GiB. By
/// published logs of llama.cpp, which print the figure of each Mac.
const THREE_QUARTERS_FROM: u64 = 36;
/// Percent of a card's memory that a process can use: CUDA's context and the driver take some.
const CARD_PERCENT: u64 = 95;

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Chip and memory, as "M4 Pro 24 GB".
    pub name: String,
    /// Bytes of its memory, or of its card's.
    pub memory_bytes: u64,
    /// Bytes that a model may use with its KV: the working set that Metal recommends, or most of a
    /// card.
    pub usable_bytes: u64,
    /// Bytes a second that its GPU reads at best, by its maker.
    pub bandwidth: f64,
    /// Generation of an Apple GPU, as 16 for `applegpu_g16s`.
    pub generation: Option<u32>,
}

/// No such machine is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownMachine {
    /// The chip is not in the table.
    #[error(
        "--machine: expected a chip and its memory, as \"M4 Pro 24 GB\", found {found:?}; known are {}",
        known()
    )]
    Chip {
        /// The text that was to name one.
        found: String,
    },
    /// The chip is, and not with this memory.
    #[error("--machine: expected {name} with {sizes} GB of memory, found {found}")]
    Memory {
        /// The chip.
        name: &'static str,
        /// The sizes of memory that it comes with.
        sizes: String,
        /// The size that was named.
        found: String,
    },
}

impl Machine {
    /// The machine of a name such as "M4 Pro 24 GB", "apple m4 pro 24gb" or "H100". The memory may be
    /// left out if the chip has one size only.
    ///
    /// # Errors
    /// An unknown chip, or one that does not come with this memory.
    pub fn named(text: &str) -> Result<Self, UnknownMachine> {
        let (name, size) = name_and_size(text);
        let chips = || CHIPS.iter().filter(|chip| words(chip.name) == name);
        let Some(first) = chips().next() else {
            return Err(UnknownMachine::Chip { found: text.to_owned() });
        };
        let sizes: Vec<u64> = chips().flat_map(|chip| chip.sizes).copied().collect();
        let size = size.or(match sizes[..] {
            [only] => Some(only),
            _ => None,
        });
        let chip = size.and_then(|size| chips().find(|chip| chip.sizes.contains(&size)));
        match (chip, size) {
            (Some(chip), Some(size)) => Ok(Self::of(chip, size)),
            _ => Err(UnknownMachine::Memory {
                name: first.name,
                sizes: sizes_in_words(&sizes),
                found: size.map_or("none".to_owned(), |size| format!("{size} GB")),
            }),
        }
    }

    fn of(chip: &Chip, size: u64) -> Self {
        let memory_bytes = size << 30;
        let (usable_bytes, generation) = match chip.kind {
            Kind::Apple(generation) if size < THREE_QUARTERS_FROM => {
                (memory_bytes / 3 * 2, Some(generation))
            }
            Kind::Apple(generation) => (memory_bytes / 4 * 3, Some(generation)),
            Kind::Nvidia => (memory_bytes / 100 * CARD_PERCENT, None),
        };
        Self {
            name: format!("{} {size} GB", chip.name),
            memory_bytes,
            usable_bytes,
            bandwidth: chip.bandwidth * 1e9,
            generation,
        }
    }

    /// Most tokens a second of one stream if each token reads `bytes` and nothing else takes time.
    pub fn most_tokens_s(&self, bytes: u64) -> f64 {
        self.bandwidth / bytes.max(1) as f64
    }
}

/// Words of a name in small letters.
fn words(name: &str) -> Vec<String> {
    name.split_whitespace().map(str::to_lowercase).collect()
}

/// Words of the chip without its maker, and GB of memory if the text ends in a size.
fn name_and_size(text: &str) -> (Vec<String>, Option<u64>) {
    let mut words = words(text);
    words.retain(|word| !["apple", "nvidia", "geforce"].contains(&word.as_str()));
    let unit = |word: &str| ["gb", "gib", "g"].contains(&word);
    if words.last().is_some_and(|last| unit(last)) {
        words.pop();
    } else if let Some(last) = words.last() {
        let number = last.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        if number.is_empty() || !unit(&last[number.len()..]) {
            return (words, None);
        }
        let size = number.parse().ok();
        words.pop();
        return (words, size);
    }
    let size = words.last().and_then(|last| last.parse().ok());
    if size.is_some() {
        words.pop();
    }
    (words, size)
}

fn sizes_in_words(sizes: &[u64]) -> String {
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    let texts: Vec<String> = sizes.iter().map(u64::to_string).collect();
    match texts.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => texts.concat(),
    }
}

/// Names of all machines in the table.
fn known() -> String {
    let mut names: Vec<&str> = CHIPS.iter().map(|chip| chip.name).collect();
    names.dedup();
    let name = |name: &&str| {
        let of_name = CHIPS.iter().filter(|chip| chip.name == *name);
        let sizes: Vec<u64> = of_name.flat_map(|chip| chip.sizes).copied().collect();
        format!("{name} ({} GB)", sizes_in_words(&sizes))
    };
    names.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_found_by_its_chip_and_its_memory() {
        let pro = Machine::named("M4 Pro 24 GB").expect("known");
        assert_eq!((pro.name.as_str(), pro.generation), ("M4 Pro 24 GB", Some(16)));
        for text in ["apple m4 pro 24gb", "M4 PRO 24 gb", "m4  pro 24GiB"] {
            assert_eq!(Machine::named(text).as_ref(), Ok(&pro), "{text}");
        }
        let card = Machine::named("NVIDIA GeForce RTX 4090 24 GB").expect("known");
        assert_eq!((card.generation, card.bandwidth), (None, 1.008e12));
        assert_eq!(Machine::named("H100"), Machine::named("h100 80 GB"), "it has one size");
        // Some sizes of a chip have fewer channels.
        let speeds = ["M3 Max 96 GB", "M3 Max 64 GB"].map(Machine::named);
        assert_eq!(speeds.map(|machine| machine.expect("known").bandwidth), [3e11, 4e11]);
    }

    /// The figures that published logs have for Macs, in units of 10^9 bytes.
    #[test]
    fn the_working_set_is_two_thirds_of_small_and_three_quarters_of_large_memories() {
        for (name, expected) in
            [("M4 Pro 24 GB", 17.2), ("M4 32 GB", 22.9), ("M3 Pro 36 GB", 29.0), ("M2 8 GB", 5.7)]
        {
            let usable = Machine::named(name).expect("known").usable_bytes as f64 / 1e9;
            assert!((usable - expected).abs() < 0.05, "{name}: {usable}");
        }
        let card = Machine::named("H100").expect("known");
        assert!(card.usable_bytes < card.memory_bytes && card.usable_bytes > 75 << 30);
    }

    #[test]
    fn an_unknown_machine_is_an_error_that_names_the_known_ones() {
        let words = |text: &str| Machine::named(text).expect_err("unknown").to_string();
        let unknown = words("M9 Pro 24 GB");
        for part in ["found \"M9 Pro 24 GB\"", "M4 Pro (24, 48 or 64 GB)", "H100 (80 GB)"] {
            assert!(unknown.contains(part), "{unknown}");
        }
        for text in ["", "GB", "24 GB"] {
            assert!(words(text).contains("expected a chip and its memory"), "{text}");
        }
        assert_eq!(
            words("M4 Pro 23 GB"),
            "--machine: expected M4 Pro with 24, 48 or 64 GB of memory, found 23 GB"
        );
        assert_eq!(
            words("M4 Max"),
            "--machine: expected M4 Max with 36, 48, 64 or 128 GB of memory, found none"
        );
    }

    #[test]
    fn the_table_has_each_size_of_a_chip_once() {
        for chip in CHIPS {
            assert!(chip.bandwidth > 50.0 && !chip.sizes.is_empty(), "{}", chip.name);
            for size in chip.sizes {
                let same = |other: &&Chip| other.name == chip.name && other.sizes.contains(size);
                assert_eq!(CHIPS.iter().filter(same).count(), 1, "{} {size}", chip.name);
            }
        }
    }

    #[test]
    fn a_stream_is_no_faster_than_its_memory() {
        let pro = Machine::named("M4 Pro 24 GB").expect("known");
        assert!((pro.most_tokens_s(15_100_000_000) - 18.08).abs() < 0.01);
        assert!(pro.most_tokens_s(0).is_finite());
    }
}
