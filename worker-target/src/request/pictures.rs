//! Pictures of a `Generation` as they came, checked against the model and the prompt. Their pixels
//! are looked at elsewhere (`pixels`).

use paceline_models::vision::VisionInfo;
use paceline_proto::internal::v1::Picture;
use paceline_proto::status::{Reason, ReasonStatus as _};
use tonic::Status;

use crate::core::{Image, ImageKey};

/// Longest file name, as of any file system.
const MOST_NAME: usize = 255;

/// A picture whose pixels are not read yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Announced {
    /// Its name in the message, for errors.
    pub(crate) field: String,
    /// A plain name.
    pub(crate) file: String,
    /// Size of the file.
    pub(crate) bytes: u64,
    pub(crate) digest: [u8; 32],
    /// Patches.
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    pub(crate) scale: [f32; 3],
    pub(crate) bias: [f32; 3],
}

/// Checks the pictures of a prompt. `vision` is the model's tower, `architecture` its name.
///
/// # Errors
/// The first field that cannot be served; pictures for a model that has no tower; a place for a
/// picture without one.
pub(super) fn check(
    pictures: &[Picture],
    prompt: &[u32],
    scope: &str,
    vision: Option<&VisionInfo>,
    architecture: &str,
) -> Result<(Vec<Announced>, Vec<Image>), Status> {
    let Some(vision) = vision else {
        if pictures.is_empty() {
            return Ok((vec![], vec![]));
        }
        return Err(Reason::NoVision
            .field("pictures", format!("expected none: {architecture} has no vision tower")));
    };
    let (mut announced, mut images) = (vec![], Vec::<Image>::new());
    let mut behind = 0;
    for (at, picture) in pictures.iter().enumerate() {
        let field = format!("pictures[{at}]");
        let (one, image) = one(picture, field, scope, vision)?;
        let invalid = |what: String| {
            Err(Reason::InvalidArgument.field(&format!("pictures[{at}].first"), what))
        };
        if image.first < behind {
            return invalid(format!(
                "expected a place from {behind} on, behind the picture before, found {}",
                image.first
            ));
        }
        if image.end() > prompt.len() {
            let what = format!(
                "expected {} rows in a prompt of {} ids, found them from {} on",
                image.rows(),
                prompt.len(),
                image.first
            );
            return invalid(what);
        }
        no_place(&prompt[behind..image.first], behind, vision)?;
        if let Some(other) =
            prompt[image.first..image.end()].iter().position(|id| *id != vision.image_token)
        {
            let (place, id) = (image.first + other, prompt[image.first + other]);
            return invalid(format!(
                "expected {} at all places of the picture, found {id} at {place}",
                vision.image_token
            ));
        }
        behind = image.end();
        announced.push(one);
        images.push(image);
    }
    no_place(&prompt[behind..], behind, vision)?;
    Ok((announced, images))
}

/// Nothing in these ids, the first of which is at `first`, stands for a picture: an answer would be
/// about nothing (I5).
fn no_place(ids: &[u32], first: usize, vision: &VisionInfo) -> Result<(), Status> {
    match ids.iter().position(|id| *id == vision.image_token) {
        None => Ok(()),
        Some(at) => {
            let (id, place) = (vision.image_token, first + at);
            let what = format!(
                "expected a picture for each {id}, which stands for one of its rows, found none for place {place}"
            );
            Err(Reason::InvalidArgument.field("prompt_ids", what))
        }
    }
}

fn one(
    picture: &Picture,
    field: String,
    scope: &str,
    vision: &VisionInfo,
) -> Result<(Announced, Image), Status> {
    let invalid =
        |name: &str, what: String| Reason::InvalidArgument.field(&format!("{field}.{name}"), what);
    let Picture { file, bytes, digest, first, rows, columns, scale, bias } = picture;
    let plain = !file.is_empty()
        && file.len() <= MOST_NAME
        && !file.starts_with('.')
        && !file.contains(['/', '\0']);
    if !plain {
        return Err(invalid("file", format!("expected a plain file name, found {file:?}")));
    }
    let digest: [u8; 32] = digest[..]
        .try_into()
        .map_err(|_| invalid("digest", format!("expected 32 bytes, found {}", digest.len())))?;
    for (name, size) in [("rows", *rows), ("columns", *columns)] {
        if size == 0 || !size.is_multiple_of(vision.merge) {
            return Err(invalid(
                name,
                format!("expected a multiple of {} patches, found {size}", vision.merge),
            ));
        }
    }
    let too_large = || {
        invalid(
            "rows",
            format!("expected sizes a prompt has room for, found {rows} x {columns} patches"),
        )
    };
    let patches = rows.checked_mul(*columns).ok_or_else(too_large)?;
    let expected = u64::from(patches)
        .checked_mul(u64::from(vision.patch).pow(2) * 3)
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(too_large)?;
    if *bytes != expected {
        return Err(invalid(
            "bytes",
            format!("expected {expected} for {rows} x {columns} patches, found {bytes}"),
        ));
    }
    let three = |name: &str, numbers: &[f32]| -> Result<[f32; 3], Status> {
        let three = numbers
            .try_into()
            .ok()
            .filter(|three: &[f32; 3]| three.iter().all(|number| number.is_finite()));
        three.ok_or_else(|| {
            invalid(name, format!("expected three finite numbers, found {numbers:?}"))
        })
    };
    let (scale, bias) = (three("scale", scale)?, three("bias", bias)?);
    let image = Image {
        key: ImageKey::new(scope, &digest),
        first: *first as usize,
        grid_rows: (rows / vision.merge) as usize,
        grid_columns: (columns / vision.merge) as usize,
        patches,
    };
    let announced = Announced {
        field,
        file: file.clone(),
        bytes: *bytes,
        digest,
        rows: *rows,
        columns: *columns,
        scale,
        bias,
    };
    Ok((announced, image))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::StatusExt as _;

    const TOKEN: u32 = 9;

    fn vision() -> VisionInfo {
        VisionInfo { patch: 4, merge: 2, image_token: TOKEN, blocks: 2, whole: false }
    }

    /// 2 x 3 rows of a prompt.
    fn picture(first: u32) -> Picture {
        Picture {
            file: "abc".into(),
            bytes: 4 * 6 * 16 * 3,
            digest: vec![7; 32].into(),
            first,
            rows: 4,
            columns: 6,
            scale: vec![0.5; 3],
            bias: vec![-1.0; 3],
        }
    }

    fn prompt(length: usize, rows: &[(usize, usize)]) -> Vec<u32> {
        (0..length)
            .map(|at| {
                if rows.iter().any(|(first, end)| (*first..*end).contains(&at)) { TOKEN } else { 1 }
            })
            .collect()
    }

    fn refusal(pictures: &[Picture], prompt: &[u32]) -> (Option<Reason>, String) {
        let status = check(pictures, prompt, "", Some(&vision()), "m").expect_err("refused");
        let field = status
            .get_details_bad_request()
            .map(|bad| bad.field_violations[0].field.clone())
            .unwrap_or_default();
        (Reason::of(&status), field)
    }

    #[test]
    fn pictures_stand_where_their_places_are() {
        let prompt = prompt(20, &[(2, 8), (8, 14)]);
        let (announced, images) =
            check(&[picture(2), picture(8)], &prompt, "s", Some(&vision()), "m").expect("good");
        assert_eq!(
            announced.iter().map(|one| one.field.as_str()).collect::<Vec<_>>(),
            ["pictures[0]", "pictures[1]"]
        );
        assert_eq!(
            (images[0].first, images[0].grid_rows, images[0].grid_columns, images[0].patches),
            (2, 2, 3, 24)
        );
        assert_eq!(
            (images[1].first, images[1].end(), images[1].key),
            (8, 14, ImageKey::new("s", &[7; 32]))
        );
        let none = check(&[], &prompt[..2], "", Some(&vision()), "m").expect("none are needed");
        assert_eq!(none, (vec![], vec![]));
    }

    #[test]
    fn a_model_that_does_not_see_says_so_and_reads_any_id() {
        let status =
            check(&[picture(2)], &prompt(20, &[(2, 8)]), "", None, "qwen3").expect_err("refused");
        assert_eq!(Reason::of(&status), Some(Reason::NoVision));
        assert_eq!(
            check(&[], &[TOKEN], "", None, "qwen3").expect("an id as any"),
            (vec![], vec![])
        );
    }

    #[test]
    fn each_bad_field_is_named() {
        let invalid = |field: &str| (Some(Reason::InvalidArgument), field.to_owned());
        let good = prompt(20, &[(2, 8)]);
        let refused = |change: &dyn Fn(&mut Picture)| {
            let mut picture = picture(2);
            change(&mut picture);
            refusal(&[picture], &good)
        };
        for name in ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "a\0b"] {
            assert_eq!(refused(&|p| p.file = name.into()), invalid("pictures[0].file"), "{name:?}");
        }
        assert_eq!(refused(&|p| p.file = "a".repeat(256)), invalid("pictures[0].file"));
        for length in [0, 31, 33] {
            assert_eq!(
                refused(&|p| p.digest = vec![7; length].into()),
                invalid("pictures[0].digest")
            );
        }
        assert_eq!(refused(&|p| p.rows = 0), invalid("pictures[0].rows"));
        assert_eq!(refused(&|p| p.rows = 3), invalid("pictures[0].rows"));
        assert_eq!(refused(&|p| p.columns = 5), invalid("pictures[0].columns"));
        assert_eq!(refused(&|p| (p.rows, p.columns) = (1 << 31, 2)), invalid("pictures[0].rows"));
        assert_eq!(
            refused(&|p| (p.rows, p.columns) = (u32::MAX - 1, 1 << 20)),
            invalid("pictures[0].rows")
        );
        assert_eq!(refused(&|p| p.bytes += 1), invalid("pictures[0].bytes"));
        assert_eq!(refused(&|p| p.scale[1] = f32::NAN), invalid("pictures[0].scale"));
        assert_eq!(refused(&|p| p.bias.push(0.0)), invalid("pictures[0].bias"));
        assert_eq!(refused(&|p| p.bias.clear()), invalid("pictures[0].bias"));
        // Where it stands: beside its place, behind the end, at the largest number there is.
        for first in [1, 3, 15, 20, u32::MAX] {
            assert!(
                matches!(refused(&|p| p.first = first), (Some(Reason::InvalidArgument), _)),
                "{first}"
            );
        }
        assert_eq!(refused(&|p| p.first = 1), invalid("pictures[0].first"));
        assert_eq!(refused(&|p| p.first = 15), invalid("pictures[0].first"));
        assert_eq!(refusal(&[picture(2), picture(5)], &good), invalid("pictures[1].first"));
        assert_eq!(
            refusal(&[picture(10), picture(2)], &prompt(20, &[(2, 8), (10, 16)])),
            invalid("prompt_ids")
        );
        // Places without a picture: before, between, behind, and without any at all.
        for extra in [(1, 2), (8, 9), (19, 20)] {
            assert_eq!(
                refusal(&[picture(2)], &prompt(20, &[(2, 8), extra])),
                invalid("prompt_ids")
            );
        }
        assert_eq!(refusal(&[], &good), invalid("prompt_ids"));
        // A place too few.
        assert_eq!(refusal(&[picture(2)], &prompt(20, &[(2, 7)])), invalid("pictures[0].first"));
    }
}
