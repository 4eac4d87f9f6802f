//! Placeholders: the template writes one for each image, and each is replaced by as many as its
//! image has tokens.
//!
//! The placeholder is the service's own token. In the texts of clients its characters are ordinary
//! text: conversations protect it as markup of the template, and [`crate::prompt::Tokens`] spells it
//! out in prompts that are a text. A list of token ids with it is refused (I5), because an id has no
//! ordinary form.

use super::{ImageProcessor, PlaceholderError};

/// The token that clients must not send, if the model reads images.
#[derive(Clone, Copy, Debug)]
pub struct ReservedTokens<'a>(Option<&'a ImageProcessor>);

impl<'a> ReservedTokens<'a> {
    /// The reserved token of a model with this image processor.
    pub fn new(processor: Option<&'a ImageProcessor>) -> Self {
        Self(processor)
    }

    /// How many of these token ids are the token; `None` if none is reserved.
    pub fn count(self, ids: &[u32]) -> Option<usize> {
        self.0.map(|processor| ids.iter().filter(|id| **id == processor.token).count())
    }

    /// Checks a field's token ids.
    ///
    /// # Errors
    /// The ids have the token.
    pub fn check_ids(self, field: &str, ids: &[u32]) -> Result<(), PlaceholderError> {
        let Some(processor) = self.0 else { return Ok(()) };
        match ids.iter().position(|id| *id == processor.token) {
            None => Ok(()),
            Some(at) => Err(PlaceholderError::Reserved {
                field: format!("{field}[{at}]"),
                token: processor.token,
            }),
        }
    }
}

/// A prompt with room for its images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpandedPrompt {
    /// All ids.
    pub ids: Vec<u32>,
    /// Index of the first placeholder of each image.
    pub image_starts: Vec<u32>,
    /// Ids before the first placeholder of an image that came with it.
    before: u32,
}

impl ExpandedPrompt {
    /// The index in all ids of what was at `place` before images of `counts` tokens had room.
    pub fn shifted(&self, place: usize, counts: &[u64]) -> usize {
        self.image_starts.iter().zip(counts).fold(place, |place, (start, count)| {
            let more = usize::try_from(count.saturating_sub(1)).unwrap_or(0);
            let begin = start.saturating_sub(self.before) as usize;
            if begin < place { place + more } else { place }
        })
    }
}

/// Replaces each placeholder by as many as its image has tokens (`counts`), with marks around them
/// if the processor has some. The marks are among the tokens.
///
/// # Errors
/// There are not as many placeholders as images. `field` is the field of the prompt.
pub fn expand_placeholders(
    ids: Vec<u32>,
    field: &str,
    processor: Option<&ImageProcessor>,
    counts: &[u64],
) -> Result<ExpandedPrompt, PlaceholderError> {
    let unchanged = |ids: Vec<u32>| Ok(ExpandedPrompt { ids, ..ExpandedPrompt::default() });
    let Some(processor) = processor else { return unchanged(ids) };
    let found = ids.iter().filter(|id| **id == processor.token).count();
    if found == 0 && counts.is_empty() {
        return unchanged(ids);
    }
    if found != counts.len() {
        return Err(PlaceholderError::Count {
            field: field.to_owned(),
            expected: counts.len(),
            found,
        });
    }
    let all = counts.iter().fold(ids.len() as u64, |sum, count| sum.saturating_add(*count));
    // The caller checked that the counts fit the context.
    let mut expanded = Vec::with_capacity(usize::try_from(all).unwrap_or(0));
    let mut image_starts = Vec::with_capacity(counts.len());
    let mut counts = counts.iter();
    for id in ids {
        match (id == processor.token).then(|| counts.next()).flatten() {
            None => expanded.push(id),
            Some(count) => {
                let (begin, end) = match processor.marks {
                    Some([begin, end]) => (Some(begin), Some(end)),
                    None => (None, None),
                };
                expanded.extend(begin);
                image_starts.push(u32::try_from(expanded.len()).unwrap_or(u32::MAX));
                let rows = count.saturating_sub(processor.mark_tokens());
                expanded.extend((0..rows).map(|_| id));
                expanded.extend(end);
            }
        }
    }
    Ok(ExpandedPrompt { ids: expanded, image_starts, before: processor.marks.is_some().into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::ImageTokens;
    use crate::samples::processor;

    #[test]
    fn each_placeholder_becomes_as_many_as_its_image_has_tokens() {
        let processor = processor();
        let pad = processor.token;
        let expand = |ids: &[u32], counts: &[u64]| {
            expand_placeholders(ids.to_vec(), "messages", Some(&processor), counts)
        };
        let expanded =
            |ids: Vec<u32>, image_starts: Vec<u32>| ExpandedPrompt { ids, image_starts, before: 0 };
        assert_eq!(
            expand(&[1, pad, 2, pad], &[3, 1]).expect("as many as images"),
            expanded(vec![1, pad, pad, pad, 2, pad], vec![1, 5])
        );
        let shifted = |place| {
            let made = expand(&[1, pad, 2, pad, 3], &[3, 1]).expect("as many as images");
            made.shifted(place, &[3, 1])
        };
        assert_eq!([0, 1, 2, 3, 4].map(shifted), [0, 1, 4, 5, 6]);
        assert_eq!(expand(&[1, 2], &[]).expect("no images"), expanded(vec![1, 2], vec![]));
        assert_eq!(
            expand_placeholders(vec![pad], "text", None, &[]).expect("no vision, no placeholder"),
            expanded(vec![pad], vec![])
        );
        for (ids, counts, field) in [
            (&[1, pad][..], &[][..], "text"),
            (&[1], &[4], "messages"),
            (&[pad, pad, 1], &[4], "messages"),
        ] {
            let error = expand_placeholders(ids.to_vec(), field, Some(&processor), counts)
                .expect_err("they do not agree");
            assert_eq!(error.reason(), paceline_vocabulary::Reason::Template);
            let words = format!("each of {} images", counts.len());
            assert!(error.to_string().contains(&words), "{error}");
        }
    }

    #[test]
    fn an_image_with_marks_has_them_around_its_placeholders() {
        let processor = ImageProcessor { marks: Some([8, 9]), ..processor() };
        let pad = processor.token;
        let grid = paceline_vocabulary::generation::PatchGrid { rows: 2, columns: 4 };
        let (two, three) = (processor.tokens(grid), 5);
        assert_eq!(two, 4, "two rows and two marks");
        let ids = vec![1, pad, 2, pad, 3];
        let made = expand_placeholders(ids, "messages", Some(&processor), &[two, three]);
        let made = made.expect("as many as images");
        assert_eq!(made.ids, [1, 8, pad, pad, 9, 2, 8, pad, pad, pad, 9, 3]);
        assert_eq!(made.image_starts, [2, 7]);
        let shifted = |place| made.shifted(place, &[two, three]);
        assert_eq!([0, 1, 2, 3, 4, 5].map(shifted), [0, 1, 5, 6, 11, 12]);
    }

    #[test]
    fn an_image_of_lines_has_a_token_more_for_each_line_and_two_around_them() {
        let processor = ImageProcessor { tokens: ImageTokens::Lines, ..processor() };
        let grid = paceline_vocabulary::generation::PatchGrid { rows: 4, columns: 6 };
        assert_eq!(processor.tokens(grid), 2 * (3 + 1) + 2);
    }

    #[test]
    fn the_placeholder_is_refused_among_ids() {
        let processor = processor();
        let reserved = ReservedTokens::new(Some(&processor));
        let ids = [1, processor.token];
        let error = reserved.check_ids("token_ids.ids", &ids).expect_err("it has the placeholder");
        assert_eq!(
            error.to_string(),
            "token_ids.ids[1]: expected no 77, which stands for an image's place (send Chat with the \
             image), found it"
        );
        let none = ReservedTokens::new(None);
        assert!(none.check_ids("token_ids.ids", &ids).is_ok());
    }
}
