//! Stop strings: text up to the beginning of a stop string is shown. Text that may become one is
//! held back until it cannot.

/// Looks for stop strings in one stream's text.
#[derive(Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// Text that is not out: the beginning of a stop string, at most one byte short of it.
    held: String,
}

impl StopStrings {
    /// For a new stream. None of them is empty.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Takes the next piece of text, and appends the text that can be shown to `out`. Returns the
    /// stop string that ends in this piece, if one does. The stop string and the text after it are
    /// not shown. Of several stop strings the one that ends first is returned, and of those the
    /// longest, so that the result does not depend on the pieces. With `counts` false, a stop
    /// string is ordinary text.
    pub fn take(&mut self, piece: &str, counts: bool, out: &mut String) -> Option<String> {
        if self.stops.is_empty() || piece.is_empty() {
            out.push_str(piece);
            return None;
        }
        let seen = self.held.len();
        self.held.push_str(piece);
        if counts && let Some((begin, at)) = self.find(seen) {
            out.push_str(&self.held[..begin]);
            self.held.clear();
            return Some(self.stops[at].clone());
        }
        let keep =
            self.stops.iter().map(|stop| longest_beginning(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        out.push_str(&self.held);
        self.held = rest;
        None
    }

    /// Text that is held back at the stream's end: it has not become a stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The first stop string that ends after the byte `seen`: where it begins, and its index.
    fn find(&self, seen: usize) -> Option<(usize, usize)> {
        let text = self.held.as_bytes();
        let found = self.stops.iter().enumerate().filter_map(|(at, stop)| {
            let from = (seen + 1).saturating_sub(stop.len());
            // In UTF-8 equal bytes are equal text, so bytes can be searched.
            let begin = from
                + text[from..].windows(stop.len()).position(|window| window == stop.as_bytes())?;
            Some((begin + stop.len(), begin, at))
        });
        found.min().map(|(_, begin, at)| (begin, at))
    }
}

/// Bytes at the end of `text` that `stop` begins with, less than all of it.
pub(super) fn longest_beginning(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    (1..=most)
        .rev()
        .find(|length| text.as_bytes().ends_with(&stop.as_bytes()[..*length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stops(list: &[&str]) -> StopStrings {
        StopStrings::new(list.iter().map(ToString::to_string).collect())
    }

    /// The shown text of the pieces, and the stop string. Pieces from `counting` on count.
    fn run(list: &[&str], pieces: &[&str], counting: usize) -> (String, Option<String>) {
        let (mut stops, mut shown) = (stops(list), String::new());
        for (at, piece) in pieces.iter().enumerate() {
            if let Some(stop) = stops.take(piece, at >= counting, &mut shown) {
                return (shown, Some(stop));
            }
        }
        (shown + &stops.finish(), None)
    }

    #[track_caller]
    fn check(list: &[&str], pieces: &[&str], shown: &str, stop: Option<&str>) {
        assert_eq!(
            run(list, pieces, 0),
            (shown.to_owned(), stop.map(str::to_owned)),
            "{list:?} in {pieces:?}"
        );
    }

    #[test]
    fn a_stop_string_is_found_across_pieces_and_never_shown() {
        check(&["END"], &["a E", "N", "D b"], "a ", Some("END"));
        check(&["END"], &["END"], "", Some("END"));
        check(&["END"], &["EN", "EN", "x"], "ENENx", None);
        check(&["aab"], &["a", "a", "a", "b"], "a", Some("aab"));
        check(&["\n\n"], &["x\n", "y\n", "\nz"], "x\ny", Some("\n\n"));
        check(&["🦀é"], &["a🦀", "é"], "a", Some("🦀é"));
        check(&["END"], &["EN"], "EN", None);
        check(&[], &["a"], "a", None);
    }

    #[test]
    fn of_several_stop_strings_the_first_to_end_counts() {
        check(&["abcd", "bc"], &["abcd"], "a", Some("bc"));
        check(&["abcd", "bc"], &["a", "b", "c", "d"], "a", Some("bc"));
        check(&["bc", "abc"], &["abc"], "", Some("abc"));
        check(&["x", "ab"], &["a", "x"], "a", Some("x"));
    }

    #[test]
    fn text_is_held_back_only_while_it_may_become_one() {
        let (mut stops, mut out) = (stops(&["</end>"]), String::new());
        let mut shown = |piece: &str| {
            out.clear();
            assert_eq!(stops.take(piece, true, &mut out), None);
            out.clone()
        };
        assert_eq!(shown("a </"), "a ");
        assert_eq!(shown("e"), "");
        assert_eq!(shown("a"), "</ea");
        assert_eq!(shown("<<"), "<");
        assert_eq!(shown("b"), "<b");
    }

    #[test]
    fn a_stop_string_before_min_tokens_is_text() {
        assert_eq!(run(&["ab"], &["xab", "y", "ab"], 2), ("xaby".into(), Some("ab".into())));
        assert_eq!(
            run(&["aa"], &["aa", "a"], 1),
            ("a".into(), Some("aa".into())),
            "its second half may begin another"
        );
    }

    /// The result for a text as a whole: the stop string that ends first, of those the longest.
    fn whole(text: &str, list: &[&str]) -> (String, Option<String>) {
        let ends = |stop: &&&str| {
            text.find(**stop).map(|begin| (begin + stop.len(), begin, stop.to_string()))
        };
        match list.iter().filter_map(|stop| ends(&stop)).min() {
            Some((_, begin, stop)) => (text[..begin].to_owned(), Some(stop)),
            None => (text.to_owned(), None),
        }
    }

    #[test]
    fn the_cuts_between_pieces_do_not_matter() {
        let mut config = ProptestConfig::with_cases(2000);
        config.rng_seed = proptest::test_runner::RngSeed::Fixed(6);
        let text =
            proptest::collection::vec(proptest::sample::select(vec!['a', 'b', 'é', '🦀']), 0..14);
        let stop =
            proptest::collection::vec(proptest::sample::select(vec!['a', 'b', 'é', '🦀']), 1..4);
        proptest!(config, |(text in text, list in proptest::collection::vec(stop, 1..4), cuts in any::<u16>())| {
            let text: String = text.into_iter().collect();
            let list: Vec<String> = list.into_iter().map(|stop| stop.into_iter().collect()).collect();
            let list: Vec<&str> = list.iter().map(String::as_str).collect();
            // Each bit a cut behind that character.
            let mut pieces = vec![String::new()];
            for (at, character) in text.chars().enumerate() {
                pieces.last_mut().expect("one").push(character);
                if cuts >> (at % 16) & 1 == 1 {
                    pieces.push(String::new());
                }
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&list, &pieces, 0), whole(&text, &list));
        });
    }
}
