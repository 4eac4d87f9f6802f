//! Images of a `Generation`, checked against the model and the prompt. `image_files` reads their
//! pixels.

use paceline_models::vision::VisionInfo;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_target_core::{Image, ImageKey};
use paceline_vocabulary::generation::{PatchGrid, PromptImage};
use tonic::Status;

use crate::image_files::AnnouncedImage;

/// Longest file name: the limit of common file systems.
const MAX_NAME_BYTES: usize = 255;

/// The images of a request: files to be read, and each image as the scheduler has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CheckedImages {
    pub(super) announced: Vec<AnnouncedImage>,
    pub(super) images: Vec<Image>,
}

/// Context of the checks of images.
#[derive(Clone, Copy)]
pub(super) struct ImageContext<'a> {
    pub(super) prompt: &'a [u32],
    pub(super) cache_scope: &'a str,
    /// The model's vision tower; `None` if it has none.
    pub(super) vision: Option<&'a VisionInfo>,
    /// The model's architecture, for messages.
    pub(super) architecture: &'a str,
}

/// Checks the images of a prompt.
///
/// # Errors
/// The first field that cannot be served; images for a model without a vision tower; a placeholder
/// without an image.
pub(super) fn check(
    images: &[PromptImage],
    context: ImageContext<'_>,
) -> Result<CheckedImages, Status> {
    let prompt = context.prompt;
    let Some(vision) = context.vision else {
        if images.is_empty() {
            return Ok(CheckedImages::default());
        }
        let what = format!("expected none: {} has no vision tower", context.architecture);
        return Err(Reason::NoVision.field("images", what));
    };
    let mut checked = CheckedImages::default();
    // End of the image before.
    let mut end = 0;
    for (at, image) in images.iter().enumerate() {
        let one = checked_image(image, format!("images[{at}]"), context.cache_scope, vision)?;
        check_place(at, &one.image, end, prompt, vision)?;
        end = one.image.end();
        checked.announced.push(one.announced);
        checked.images.push(one.image);
    }
    no_placeholder(&prompt[end..], end, vision)?;
    Ok(checked)
}

/// Checks the place of an image, of which `at` is the number. `end` is the end of the image before.
fn check_place(
    at: usize,
    image: &Image,
    end: usize,
    prompt: &[u32],
    vision: &VisionInfo,
) -> Result<(), Status> {
    let invalid =
        |what: String| Err(Reason::InvalidArgument.field(&format!("images[{at}].first"), what));
    if image.first < end {
        return invalid(format!(
            "expected a place from {end} on, after the image before, found {}",
            image.first
        ));
    }
    if image.end() > prompt.len() {
        return invalid(format!(
            "expected {} rows in a prompt of {} ids, found them from {} on",
            image.rows,
            prompt.len(),
            image.first
        ));
    }
    no_placeholder(&prompt[end..image.first], end, vision)?;
    let rows = &prompt[image.first..image.end()];
    if let Some(other) = rows.iter().position(|id| *id != vision.image_token) {
        return invalid(format!(
            "expected {} at all places of the image, found {} at {}",
            vision.image_token,
            rows[other],
            image.first + other
        ));
    }
    Ok(())
}

/// Checks that none of these ids is a placeholder of an image, because the answer would describe an
/// image that was never sent (I5). The first id is at `first`.
fn no_placeholder(ids: &[u32], first: usize, vision: &VisionInfo) -> Result<(), Status> {
    match ids.iter().position(|id| *id == vision.image_token) {
        None => Ok(()),
        Some(at) => {
            let (id, place) = (vision.image_token, first + at);
            let what = format!(
                "expected an image for each {id}, which stands for one of its rows, found none for place {place}"
            );
            Err(Reason::InvalidArgument.field("prompt_ids", what))
        }
    }
}

/// One image: the file to be read, and the image as the scheduler has it.
struct CheckedImage {
    announced: AnnouncedImage,
    image: Image,
}

fn checked_image(
    image: &PromptImage,
    field: String,
    scope: &str,
    vision: &VisionInfo,
) -> Result<CheckedImage, Status> {
    let invalid =
        |name: &str, what: String| Reason::InvalidArgument.field(&format!("{field}.{name}"), what);
    let PromptImage { file, bytes, digest, start, grid, scale, bias } = image;
    let PatchGrid { rows, columns } = *grid;
    if !is_plain_name(file) {
        return Err(invalid("file", format!("expected a plain file name, found {file:?}")));
    }
    let digest: [u8; 32] = digest[..]
        .try_into()
        .map_err(|_| invalid("digest", format!("expected 32 bytes, found {}", digest.len())))?;
    let patches =
        patches(*grid, *bytes, vision).map_err(|SizeFault { field, what }| invalid(field, what))?;
    let three = |name: &str, numbers: &[f32]| {
        let what = || format!("expected three finite numbers, found {numbers:?}");
        three_finite(numbers).ok_or_else(|| invalid(name, what()))
    };
    let (scale, bias) = (three("scale", scale)?, three("bias", bias)?);
    let (grid_rows, grid_columns) = (rows / vision.merge, columns / vision.merge);
    let image = Image {
        key: ImageKey::new(scope, &digest),
        first: *start as usize,
        rows: vision.form.rows(grid_rows, grid_columns) as usize,
        grid_rows: grid_rows as usize,
        grid_columns: grid_columns as usize,
        patches,
    };
    let announced = AnnouncedImage {
        field,
        file: file.clone(),
        bytes: *bytes,
        digest,
        rows,
        columns,
        scale,
        bias,
    };
    Ok(CheckedImage { announced, image })
}

/// A size that contradicts the model or another field.
struct SizeFault {
    field: &'static str,
    what: String,
}

/// The number of an image's patches. Its sides are whole rows of the prompt, and its bytes are those
/// of its patches.
fn patches(grid: PatchGrid, bytes: u64, vision: &VisionInfo) -> Result<u32, SizeFault> {
    let PatchGrid { rows, columns } = grid;
    for (field, size) in [("rows", rows), ("columns", columns)] {
        if size == 0 || !size.is_multiple_of(vision.merge) {
            let what = format!("expected a multiple of {} patches, found {size}", vision.merge);
            return Err(SizeFault { field, what });
        }
    }
    let too_large = || SizeFault {
        field: "rows",
        what: format!("expected sizes a prompt has room for, found {rows} x {columns} patches"),
    };
    let patches = rows.checked_mul(columns).ok_or_else(too_large)?;
    let of_prompt = vision.form.rows(rows / vision.merge, columns / vision.merge);
    if let Some(most) = vision.most_rows.filter(|most| of_prompt > u64::from(*most)) {
        let what = format!("expected at most {most} rows of the prompt, found {of_prompt}");
        return Err(SizeFault { field: "rows", what });
    }
    let expected = u64::from(patches)
        .checked_mul(u64::from(vision.patch).pow(2) * 3)
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(too_large)?;
    if bytes == expected {
        return Ok(patches);
    }
    let what = format!("expected {expected} for {rows} x {columns} patches, found {bytes}");
    Err(SizeFault { field: "bytes", what })
}

/// Whether a name is a plain file name: it cannot lead to another folder.
fn is_plain_name(file: &str) -> bool {
    !file.is_empty()
        && file.len() <= MAX_NAME_BYTES
        && !file.starts_with('.')
        && !file.contains(['/', '\0'])
}

fn three_finite(numbers: &[f32]) -> Option<[f32; 3]> {
    let three: [f32; 3] = numbers.try_into().ok()?;
    three.iter().all(|number| number.is_finite()).then_some(three)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_models::vision::ImageForm;
    use paceline_proto::internal::v1::Image;
    use tonic_types::StatusExt as _;

    const TOKEN: u32 = 9;

    fn vision() -> VisionInfo {
        VisionInfo {
            patch: 4,
            merge: 2,
            image_token: TOKEN,
            blocks: 2,
            form: ImageForm::Grid,
            whole: false,
            most_rows: None,
        }
    }

    /// 2 x 3 rows of a prompt.
    fn image(first: u32) -> Image {
        Image {
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

    fn checked(
        images: &[Image],
        prompt: &[u32],
        cache_scope: &str,
        vision: Option<&VisionInfo>,
    ) -> Result<CheckedImages, Status> {
        let images: Vec<_> = images.iter().cloned().map(PromptImage::from).collect();
        check(&images, ImageContext { prompt, cache_scope, vision, architecture: "m" })
    }

    fn refusal(images: &[Image], prompt: &[u32]) -> (Option<Reason>, String) {
        let status = checked(images, prompt, "", Some(&vision())).expect_err("refused");
        let field = status
            .get_details_bad_request()
            .map(|bad| bad.field_violations[0].field.clone())
            .unwrap_or_default();
        (Reason::of(&status), field)
    }

    #[test]
    fn each_image_replaces_its_own_placeholders() {
        let prompt = prompt(20, &[(2, 8), (8, 14)]);
        let CheckedImages { announced, images } =
            checked(&[image(2), image(8)], &prompt, "s", Some(&vision())).expect("good");
        assert_eq!(
            announced.iter().map(|one| one.field.as_str()).collect::<Vec<_>>(),
            ["images[0]", "images[1]"]
        );
        assert_eq!(
            (images[0].first, images[0].grid_rows, images[0].grid_columns, images[0].patches),
            (2, 2, 3, 24)
        );
        assert_eq!(
            (images[1].first, images[1].end(), images[1].key),
            (8, 14, ImageKey::new("s", &[7; 32]))
        );
        let none = checked(&[], &prompt[..2], "", Some(&vision())).expect("none are needed");
        assert_eq!(none, CheckedImages::default());
    }

    #[test]
    fn an_image_of_more_rows_than_a_pass_holds_is_refused() {
        let of_most = |most_rows| VisionInfo { most_rows: Some(most_rows), ..vision() };
        let prompt = prompt(20, &[(2, 8)]);
        assert!(checked(&[image(2)], &prompt, "", Some(&of_most(6))).is_ok());
        let status = checked(&[image(2)], &prompt, "", Some(&of_most(5))).expect_err("refused");
        assert_eq!(Reason::of(&status), Some(Reason::InvalidArgument));
        let expected = "expected at most 5 rows of the prompt, found 6";
        assert!(status.message().contains(expected), "{}", status.message());
    }

    #[test]
    fn without_a_tower_images_are_refused_and_every_id_is_text() {
        let status = checked(&[image(2)], &prompt(20, &[(2, 8)]), "", None).expect_err("refused");
        assert_eq!(Reason::of(&status), Some(Reason::NoVision));
        assert_eq!(
            checked(&[], &[TOKEN], "", None).expect("an ordinary id"),
            CheckedImages::default()
        );
    }

    #[test]
    fn each_bad_field_is_named() {
        let invalid = |field: &str| (Some(Reason::InvalidArgument), field.to_owned());
        let good = prompt(20, &[(2, 8)]);
        let refused = |change: &dyn Fn(&mut Image)| {
            let mut image = image(2);
            change(&mut image);
            refusal(&[image], &good)
        };
        for name in ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "a\0b"] {
            assert_eq!(refused(&|p| p.file = name.into()), invalid("images[0].file"), "{name:?}");
        }
        assert_eq!(refused(&|p| p.file = "a".repeat(256)), invalid("images[0].file"));
        for length in [0, 31, 33] {
            assert_eq!(
                refused(&|p| p.digest = vec![7; length].into()),
                invalid("images[0].digest")
            );
        }
        assert_eq!(refused(&|p| p.rows = 0), invalid("images[0].rows"));
        assert_eq!(refused(&|p| p.rows = 3), invalid("images[0].rows"));
        assert_eq!(refused(&|p| p.columns = 5), invalid("images[0].columns"));
        assert_eq!(refused(&|p| (p.rows, p.columns) = (1 << 31, 2)), invalid("images[0].rows"));
        assert_eq!(
            refused(&|p| (p.rows, p.columns) = (u32::MAX - 1, 1 << 20)),
            invalid("images[0].rows")
        );
        assert_eq!(refused(&|p| p.bytes += 1), invalid("images[0].bytes"));
        assert_eq!(refused(&|p| p.scale[1] = f32::NAN), invalid("images[0].scale"));
        assert_eq!(refused(&|p| p.bias.push(0.0)), invalid("images[0].bias"));
        assert_eq!(refused(&|p| p.bias.clear()), invalid("images[0].bias"));
        // Its position: beside its place, after the end, the largest number there is.
        for first in [1, 3, 15, 20, u32::MAX] {
            assert!(
                matches!(refused(&|p| p.first = first), (Some(Reason::InvalidArgument), _)),
                "{first}"
            );
        }
        assert_eq!(refused(&|p| p.first = 1), invalid("images[0].first"));
        assert_eq!(refused(&|p| p.first = 15), invalid("images[0].first"));
        assert_eq!(refusal(&[image(2), image(5)], &good), invalid("images[1].first"));
        assert_eq!(
            refusal(&[image(10), image(2)], &prompt(20, &[(2, 8), (10, 16)])),
            invalid("prompt_ids")
        );
        // Places without an image: before, between and after images, and without any at all.
        for extra in [(1, 2), (8, 9), (19, 20)] {
            assert_eq!(refusal(&[image(2)], &prompt(20, &[(2, 8), extra])), invalid("prompt_ids"));
        }
        assert_eq!(refusal(&[], &good), invalid("prompt_ids"));
        // One place is missing.
        assert_eq!(refusal(&[image(2)], &prompt(20, &[(2, 7)])), invalid("images[0].first"));
    }
}
