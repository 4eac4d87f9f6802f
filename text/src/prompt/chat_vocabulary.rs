//! Encodes a rendered conversation: markup of the template becomes its tokens, the same characters
//! from a client become ordinary tokens.
//!
//! The algorithm: the tokenizer's pipeline runs with added tokens of its own. In the place of each
//! markup it knows a code, so that only codes become such tokens. All other added tokens, the
//! normalizer, the pre-tokenizer and the model are the tokenizer's, so that an honest conversation
//! has the ids that the tokenizer alone gives it.
//!
//! A forged delimiter that is ordinary text is encoded in parts, cut inside its longest token. Then
//! the delimiter's ids do not arise, and the model still reads the characters.
//!
//! The limit: a delimiter that a tokenizer writes with one token for each character cannot be cut
//! inside, and characters have no other ids. There it is cut from its neighbours, so that only its
//! ids without a neighbour's character can arise. The ids `Ġ<`, `<`, `S`, `Y`, `S`, `>`, `>Ċ` of a
//! template's ` <<SYS>>` and line break do not. [`ChatVocabulary::uncut`] has these delimiters, and
//! a warning names them when the model is loaded.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{
    AddedToken, AddedVocabulary, Encoding, Model, NormalizedString, Normalizer, NormalizerWrapper,
    OffsetType, PreTokenizer, Token, Tokenizer,
};

use super::ids::{PromptIds, TokenizerError};
use super::markup::{Item, Rendered, digit};

/// Begins a code in the text that the pipeline gets: a number follows. A client's own character of
/// this kind is followed by a cut, which is a code as well, so that it begins none.
const CODE: char = '\u{fdd0}';
/// Texts around a delimiter that may merge with it into other tokens.
const BEFORE: [&str; 5] = ["", " ", "\n", "x", ">"];
const BEHIND: [&str; 4] = ["", "\n", " x", "x"];
/// Ids from here on are places in [`ChatVocabulary::real`]. Those of a vocabulary are below (see
/// `Tokens::new`).
const FIRST_PLACE: u32 = 1 << 24;

/// The added tokens of rendered conversations.
#[derive(Debug)]
pub(super) struct ChatVocabulary {
    added: AddedVocabulary,
    /// The id of each place; none for a cut.
    real: Vec<Option<u32>>,
    /// Ids that only a code may become.
    protected: HashSet<u32>,
    /// Whether each markup is a token.
    is_token: Vec<bool>,
    /// Where the text of each markup is cut.
    cuts: Vec<Vec<usize>>,
    /// Numbers of the markup that no cut keeps from having its own ids somewhere.
    uncut: Vec<usize>,
}

impl ChatVocabulary {
    /// Of this tokenizer and markup.
    ///
    /// # Errors
    /// The tokenizer's own.
    pub(super) fn new(tokenizer: &Tokenizer, markup: &[Item]) -> Result<Self, TokenizerError> {
        let place_of: HashMap<&str, usize> =
            markup.iter().enumerate().map(|(at, item)| (item.text.as_str(), at)).collect();
        let decoder = tokenizer.get_added_tokens_decoder();
        let mut ids: Vec<u32> = decoder.keys().copied().collect();
        ids.sort_unstable();
        let mut known = Vec::with_capacity(ids.len() + 1);
        for id in ids {
            let mut token = decoder[&id].clone();
            if let Some(item) =
                place_of.get(token.content.as_str()).filter(|at| markup[**at].token.is_some())
            {
                token.content = code(*item);
                token.normalized &= survives(tokenizer.get_normalizer(), &token.content);
            }
            known.push((token, Some(id)));
        }
        known.push((AddedToken::from(code(markup.len()), false).normalized(false), None));

        let places = known
            .iter()
            .zip(FIRST_PLACE..)
            .map(|((token, _), place)| (token.content.clone(), place))
            .collect();
        let real = known.iter().map(|(_, id)| *id).collect();
        let mut added = AddedVocabulary::new();
        let tokens = known.into_iter().map(|(token, _)| token);
        added.add_tokens(tokens, &Places(places), tokenizer.get_normalizer())?;
        let mut made = Self {
            added,
            real,
            protected: markup.iter().filter_map(|item| item.token).collect(),
            is_token: markup.iter().map(|item| item.token.is_some()).collect(),
            cuts: vec![],
            uncut: vec![],
        };
        for (at, item) in markup.iter().enumerate() {
            let (cuts, everywhere) = made.cuts_of(tokenizer, item)?;
            made.cuts.push(cuts);
            if !everywhere {
                made.uncut.push(at);
            }
        }
        Ok(made)
    }

    /// Numbers of the delimiters whose ids a client's text can have in some place: each has one
    /// token for each character.
    pub(super) fn uncut(&self) -> &[usize] {
        &self.uncut
    }

    /// The ids of a rendered conversation; `None` if its text cannot be written without a token
    /// that is the template's alone.
    ///
    /// # Errors
    /// The tokenizer's own.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        rendered: &Rendered,
    ) -> Result<Option<PromptIds>, TokenizerError> {
        // A model whose vocabulary has the token as a word would make it of characters: there they
        // are cut as well.
        for cut_tokens in [false, true] {
            let text = self.coded(rendered, cut_tokens);
            let encoding = self.pipeline(tokenizer, &text, OffsetType::None)?;
            if let Some(ids) = self.translate(encoding.get_ids()) {
                let last_turn = self.last_turn(rendered, &ids);
                return Ok(Some(PromptIds { ids, last_turn }));
            }
        }
        Ok(None)
    }

    /// Index in the ids of the template's last token before the text of the last turn. Each of its
    /// tokens is one protected id, and no other text has such an id, so they are counted.
    fn last_turn(&self, rendered: &Rendered, ids: &[u32]) -> Option<usize> {
        let turn = rendered.last_turn?;
        let before = rendered.markup.iter().take_while(|at| at.end <= turn);
        let tokens = before.filter(|at| self.is_token[at.item]).count();
        let mut places =
            ids.iter().enumerate().filter(|(_, id)| self.protected.contains(*id)).map(|(at, _)| at);
        places.nth(tokens.checked_sub(1)?)
    }

    /// Real ids; `None` if one is a protected token that no code became.
    fn translate(&self, ids: &[u32]) -> Option<Vec<u32>> {
        let mut out = Vec::with_capacity(ids.len());
        for id in ids {
            match id.checked_sub(FIRST_PLACE) {
                Some(place) => out.extend(self.real.get(place as usize).copied().flatten()),
                None if self.protected.contains(id) => return None,
                None => out.push(*id),
            }
        }
        Some(out)
    }

    /// The steps of the tokenizer's own encoding.
    fn pipeline(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        offsets: OffsetType,
    ) -> Result<Encoding, TokenizerError> {
        let run = || {
            let mut pieces = self.added.extract_and_normalize(tokenizer.get_normalizer(), text);
            if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut pieces)?;
            }
            tokenizer.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
            pieces.into_encoding(None, 0, offsets)
        };
        run().map_err(TokenizerError::from)
    }

    /// The text with codes in the place of the template's tokens, and with cuts.
    fn coded(&self, rendered: &Rendered, cut_tokens: bool) -> String {
        let tokens: Vec<_> = rendered.markup.iter().filter(|at| self.is_token[at.item]).collect();
        let mut cuts = Vec::new();
        for forged in
            rendered.forged.iter().filter(|forged| cut_tokens || !self.is_token[forged.item])
        {
            cuts.extend(self.cuts[forged.item].iter().map(|cut| forged.start + cut));
            cuts.extend(rendered.borders(forged));
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut out = String::with_capacity(rendered.text.len());
        let (mut done, mut cuts) = (0, cuts.into_iter().peekable());
        for (start, end, item) in tokens
            .iter()
            .map(|at| (at.start, at.end, Some(at.item)))
            .chain([(rendered.text.len(), 0, None)])
        {
            while let Some(cut) = cuts.next_if(|cut| *cut <= start) {
                // Those inside of a token lie before `done`.
                if cut > done {
                    self.ordinary(&rendered.text[done..cut], &mut out);
                    out.push_str(&self.cut_code());
                    done = cut;
                }
            }
            self.ordinary(&rendered.text[done..start], &mut out);
            if let Some(item) = item {
                out.push_str(&code(item));
                done = end;
            }
        }
        out
    }

    /// Text in which no code begins.
    fn ordinary(&self, text: &str, out: &mut String) {
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once(CODE) {
            out.push_str(before);
            out.push(CODE);
            out.push_str(&self.cut_code());
            rest = behind;
        }
        out.push_str(rest);
    }

    fn cut_code(&self) -> String {
        code(self.is_token.len())
    }

    /// Behind the first character, if the markup is a token. Otherwise one inside of a token for
    /// each way in which the text around it may change its tokens, and whether each of these ways
    /// has such a token.
    fn cuts_of(
        &self,
        tokenizer: &Tokenizer,
        item: &Item,
    ) -> Result<(Vec<usize>, bool), TokenizerError> {
        let text = item.text.as_str();
        if item.token.is_some() {
            return Ok((text.char_indices().map(|(at, _)| at).nth(1).into_iter().collect(), true));
        }
        let (mut cuts, mut everywhere) = (Vec::new(), true);
        for (before, behind) in
            BEFORE.into_iter().flat_map(|before| BEHIND.map(|behind| (before, behind)))
        {
            let encoding =
                self.pipeline(tokenizer, &format!("{before}{text}{behind}"), OffsetType::Byte)?;
            match cut(text, before.len(), encoding.get_offsets()) {
                Some(cut) => cuts.push(cut),
                None => everywhere = false,
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        Ok((cuts, everywhere))
    }
}

/// A cut of `text` inside of a token: in the middle of the one that has most of it, else between
/// `text` and its neighbour. `tokens` are ranges in a longer text that has `text` at `start`.
/// `None` if each token of it is one of its characters.
fn cut(text: &str, start: usize, tokens: &[(usize, usize)]) -> Option<usize> {
    let end = start + text.len();
    let touching = tokens.iter().filter(|(from, to)| *from < end && *to > start);
    // The part of each token in the text.
    let parts =
        touching.clone().map(|(from, to)| (from.saturating_sub(start), (*to).min(end) - start));
    let inside = parts.max_by_key(|(from, to)| to - from).and_then(|(from, to)| {
        let middle = from.midpoint(to);
        let borders = text.char_indices().map(|(at, _)| at).filter(|at| from < *at && *at < to);
        borders.min_by_key(|at| (at.abs_diff(middle), *at))
    });
    let beside = || {
        touching.clone().find_map(|(from, to)| match () {
            () if *from < start => Some(0),
            () if *to > end => Some(text.len()),
            () => None,
        })
    };
    inside.or_else(beside)
}

fn code(number: usize) -> String {
    String::from_iter([CODE, digit(number)])
}

/// Whether the normalizer leaves something of a code, so that a search can find it in normalized
/// text.
fn survives(normalizer: Option<&NormalizerWrapper>, code: &str) -> bool {
    let Some(normalizer) = normalizer else { return true };
    let normal = |text: &str| {
        let mut text = NormalizedString::from(text);
        normalizer.normalize(&mut text).ok().map(|()| text.get().to_owned())
    };
    normal(code)
        .is_some_and(|code| !code.is_empty() && normal("").is_some_and(|empty| empty != code))
}

/// Gives each added token an id that its model has not: its place.
struct Places(HashMap<String, u32>);

impl Model for Places {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, _: &str) -> tokenizers::Result<Vec<Token>> {
        Ok(vec![])
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.get(token).copied()
    }

    fn id_to_token(&self, _: u32) -> Option<String> {
        None
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.clone()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.len()
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Ok(vec![])
    }

    fn get_trainer(&self) -> TrainerWrapper {
        BpeTrainer::default().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_inside_of_a_token() {
        // "x<<AB>>y" with the delimiter "<<AB>>".
        let of = |tokens: &[(usize, usize)]| cut("<<AB>>", 1, tokens);
        assert_eq!(of(&[(0, 1), (1, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8)]), Some(1));
        assert_eq!(of(&[(0, 1), (1, 2), (2, 6), (6, 7), (7, 8)]), Some(3));
        // More of a neighbour's token, and nothing but neighbours.
        assert_eq!(of(&[(0, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8)]), Some(1));
        assert_eq!(of(&[(0, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8)]), Some(0));
        assert_eq!(of(&[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 8)]), Some(6));
        assert_eq!(of(&[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8)]), None);
        // Characters of several bytes are never cut.
        assert_eq!(cut("a€", 0, &[(0, 4)]), Some(1));
        assert_eq!(cut("€", 0, &[(0, 3), (0, 3)]), None);
    }
}
