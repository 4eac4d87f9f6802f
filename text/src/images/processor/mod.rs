//! How a model's images are prepared, by the settings of its checkpoint. A setting that a file
//! leaves out or writes as null has the default of the model type.

mod families;

use serde_json::{Map, Value};

pub use families::ImageTokens;
use families::{CENTRED, Colours, Family, Resizing};

use super::resize::{Budget, SizeRule, Sizes, TRAINED};
use super::{BadImage, Detail, PatchGrid, Size};
use crate::checkpoint::{LoadError, ProcessorSettings, VisionSettings};

/// Tokens around an image of Gemma, if config.json names none.
const GEMMA_MARKS: [u32; 2] = [255_999, 258_882];
/// Most tokens of an image of Gemma, if no file names them.
const USUAL_BUDGET: u64 = 280;
/// Most pixels of a budget, above any that is published: it keeps sides in the range of u32.
const MOST_PIXELS: u64 = 1 << 28;
/// Pillow's number of its bicubic filter.
const BICUBIC: u64 = 3;

/// Pixels of an image of [`Detail::Low`], at most.
const LOW_PIXELS: u64 = 512 * 512;

/// How a model's images are prepared, and the token that stands for them.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    /// Sizes that images get.
    pub sizes: SizeRule,
    /// Pixels of a patch's side.
    pub patch: u32,
    /// Patches of a side that become one token of the prompt.
    pub merge: u32,
    /// Tokens of the prompt for an image.
    pub tokens: ImageTokens,
    /// The vision tower gets `byte · scale + bias` of red, green, blue.
    pub scale: [f32; 3],
    /// See `scale`.
    pub bias: [f32; 3],
    /// The id of the placeholder.
    pub token: u32,
    /// The ids before and after the placeholders of an image, if the template writes none.
    pub marks: Option<[u32; 2]>,
}

impl ImageProcessor {
    /// The image processor of a model with these settings. `token_text` is the tokenizer's text of
    /// an id. `None` for a model without a vision tower that this version knows.
    ///
    /// # Errors
    /// The first setting that cannot be served, with its file.
    pub fn new(
        settings: &VisionSettings,
        token_text: impl Fn(u32) -> Option<String>,
    ) -> Result<Option<Self>, LoadError> {
        let config = |what: String| LoadError::content(&settings.config_path, what);
        let Some(family) = served_family(settings)? else { return Ok(None) };
        let merge = match family.is_filling() {
            true => settings.pooling_kernel_size,
            false => settings.spatial_merge_size,
        };
        let merge = merge.unwrap_or(family.merge);
        let patch = settings.patch_size.unwrap_or(family.patch);
        if !(1..=128).contains(&patch) || !(1..=16).contains(&merge) {
            let (key, _) = family.merge_keys();
            return Err(config(format!(
                "vision_config: expected patch_size 1 to 128 and {key} 1 to 16, found {patch} and {merge}"
            )));
        }
        let Some(token) = settings.image_token_id else {
            return Err(config(
                "image_token_id: expected the id that stands for images, as there is a vision_config; found none".into(),
            ));
        };
        let text = |key: &str, id: u32| {
            let unknown =
                || config(format!("{key}: expected a token of tokenizer.json, found {id}"));
            token_text(id).ok_or_else(unknown)
        };
        text("image_token_id", token)?;
        let marks = family.is_filling().then(|| settings.image_marks(GEMMA_MARKS));
        for (key, id) in ["boi_token_id", "eoi_token_id"].into_iter().zip(marks.iter().flatten()) {
            text(key, *id)?;
        }
        let ProcessorSettings { path, fields } = settings.processor()?;
        let mut fields = Fields { of: fields };
        let unserved = |Unserved(what)| LoadError::content(&path, what);
        fields.check_resizing(patch, merge, family).map_err(unserved)?;
        let sizes = fields.sizes(patch * merge, family).map_err(unserved)?;
        let Normalization { scale, bias } =
            fields.normalization(family.colours).map_err(unserved)?;
        let tokens = family.tokens;
        Ok(Some(Self { sizes, patch, merge, tokens, scale, bias, token, marks }))
    }

    /// Patches of an image that has this size before it is resized.
    ///
    /// # Errors
    /// The sides differ by more than the allowed ratio.
    pub fn grid(&self, size: Size, detail: Detail) -> Result<PatchGrid, BadImage> {
        let sizes = match detail {
            Detail::Full => self.sizes,
            Detail::Low => self.sizes.at_most(LOW_PIXELS),
        };
        let Size { width, height } = sizes.of(size)?;
        Ok(PatchGrid { rows: height / self.patch, columns: width / self.patch })
    }

    /// Size in pixels of an image with this grid of patches.
    pub fn size(&self, grid: PatchGrid) -> Size {
        Size { width: grid.columns * self.patch, height: grid.rows * self.patch }
    }

    /// Tokens of the prompt for an image with this grid of patches, the marks around it included.
    pub fn tokens(&self, grid: PatchGrid) -> u64 {
        let merge = u64::from(self.merge);
        let (lines, columns) = (u64::from(grid.rows) / merge, u64::from(grid.columns) / merge);
        let rows = match self.tokens {
            ImageTokens::Squares => lines * columns,
            ImageTokens::Lines => lines * (columns + 1) + 2,
        };
        rows + self.mark_tokens()
    }

    /// Most pixels of an image as the model reads it.
    pub fn most_pixels(&self) -> u64 {
        self.sizes.most_pixels()
    }

    /// Most tokens of the prompt for an image, the marks around it included.
    pub fn most_tokens(&self) -> u64 {
        let squares = self.most_pixels() / u64::from(self.patch * self.merge).pow(2);
        let rows = match self.tokens {
            ImageTokens::Squares => squares,
            // Images are read up to 200 times as high as wide, and a width may be rounded down by a
            // third: no image has more lines.
            ImageTokens::Lines => squares + (300 * squares).isqrt().min(squares) + 2,
        };
        rows + self.mark_tokens()
    }

    /// Tokens of the prompt around an image.
    pub fn mark_tokens(&self) -> u64 {
        self.marks.map_or(0, |marks| marks.len() as u64)
    }
}

/// The family of a model with a vision part whose tower the target serves. Without one it is served
/// as a text model, and the log has the reason.
fn served_family(settings: &VisionSettings) -> Result<Option<&'static Family>, LoadError> {
    let model_type = settings.model_type.as_deref().unwrap_or_default();
    let Some(family) = Family::of(settings) else {
        // The target decides whether the model can be served at all.
        tracing::warn!(
            model_type,
            "this version knows no images of this model type: it is served as a text model"
        );
        return Ok(None);
    };
    if settings.has_tower()? {
        return Ok(Some(family));
    }
    tracing::warn!(
        model_type,
        "the checkpoint has no tensors of a vision tower: it is served as a text model"
    );
    Ok(None)
}

/// Reason why a vision part is not served: the expected and the found setting.
struct Unserved(String);

impl From<String> for Unserved {
    fn from(words: String) -> Self {
        Self(words)
    }
}

/// Settings by name. A null is the same as a name that is left out.
struct Fields {
    of: Map<String, Value>,
}

/// How bytes become the vision tower's numbers.
struct Normalization {
    scale: [f32; 3],
    bias: [f32; 3],
}

/// Bounds of an image's pixels, as far as the settings have them.
#[derive(Default)]
struct PixelBounds {
    min: Option<u64>,
    max: Option<u64>,
}

impl Fields {
    fn value(&mut self, key: &str) -> Option<Value> {
        self.of.remove(key).filter(|value| !value.is_null())
    }

    /// A setting that is on unless it is switched off.
    fn flag(&mut self, key: &str) -> Result<bool, Unserved> {
        self.flag_or(key, true)
    }

    fn flag_or(&mut self, key: &str, usual: bool) -> Result<bool, Unserved> {
        match self.value(key) {
            None => Ok(usual),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(format!("{key}: expected true or false, found {other}").into()),
        }
    }

    fn whole(&mut self, key: &str) -> Result<Option<u64>, Unserved> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64() {
            Some(number) if number > 0 => Ok(Some(number)),
            _ => Err(format!("{key}: expected a whole number above 0, found {value}").into()),
        }
    }

    fn number(&mut self, key: &str) -> Result<Option<f64>, Unserved> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{key}: expected a number, found {value}").into()),
        }
    }

    /// One number for all colours, or one for each.
    fn colours(&mut self, key: &str) -> Result<Option<[f64; 3]>, Unserved> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let each = |value: &Value| value.as_f64();
        let found = match &value {
            Value::Array(list) => list
                .iter()
                .map(each)
                .collect::<Option<Vec<_>>>()
                .and_then(|list| list.try_into().ok()),
            other => each(other).map(|number| [number; 3]),
        };
        match found {
            Some(colours) => Ok(Some(colours)),
            None => Err(format!("{key}: expected three numbers, found {value}").into()),
        }
    }

    /// Refuses ways of resizing that this version does not know, for a tower of these patches.
    fn check_resizing(&mut self, patch: u32, merge: u32, family: &Family) -> Result<(), Unserved> {
        let (_, merge_key) = family.merge_keys();
        for (key, own) in [("patch_size", patch), (merge_key, merge)] {
            if let Some(found) = self.whole(key)?
                && found != u64::from(own)
            {
                return Err(format!(
                    "{key}: expected {own}, which is the tower's (config.json), found {found}"
                )
                .into());
            }
        }
        if !self.flag("do_resize")? {
            let what =
                "do_resize: expected true, as the tower takes whole patches only, found false";
            return Err(what.to_owned().into());
        }
        if let Some(filter) = self.whole("resample")?
            && filter != BICUBIC
            && !family.ignores_filter
        {
            return Err(format!("resample: expected {BICUBIC} (bicubic), found {filter}").into());
        }
        // All images are converted to red, green and blue here.
        self.flag("do_convert_rgb")?;
        Ok(())
    }

    /// The sizes that images get. `factor`: pixels of a token's side.
    fn sizes(&mut self, factor: u32, family: &Family) -> Result<SizeRule, Unserved> {
        match family.resizing {
            Resizing::Filling => self.budget(factor).map(SizeRule::Filling),
            Resizing::Within { min_pixels, max_pixels, frames, small } => {
                let usual = Sizes { factor, min_pixels, max_pixels, frames, small };
                self.bounds(usual).map(SizeRule::Within)
            }
        }
    }

    /// The budget that images fill. `size` is not read: published files have one that the reference
    /// ignores.
    fn budget(&mut self, factor: u32) -> Result<Budget, Unserved> {
        let rows = self.whole("max_soft_tokens")?.unwrap_or(USUAL_BUDGET);
        match TRAINED.iter().find(|trained| u64::from(**trained) == rows) {
            Some(rows) => Ok(Budget { factor, rows: *rows }),
            None => {
                Err(format!("max_soft_tokens: expected one of {TRAINED:?}, found {rows}").into())
            }
        }
    }

    /// The sizes that images get if they are bounds of pixels.
    fn bounds(&mut self, usual: Sizes) -> Result<Sizes, Unserved> {
        let bounds = self.size()?;
        // These are the older names. They win where they have a value.
        let min_pixels = self.whole("min_pixels")?.or(bounds.min).unwrap_or(usual.min_pixels);
        let max_pixels = self.whole("max_pixels")?.or(bounds.max).unwrap_or(usual.max_pixels);
        let least = u64::from(usual.factor).pow(2) * u64::from(usual.frames);
        if min_pixels > max_pixels || max_pixels < least || max_pixels > MOST_PIXELS {
            return Err(format!(
                "size: expected at least {least} and at most {MOST_PIXELS} pixels, the least no more than the most, found \
                 {min_pixels} to {max_pixels}"
            )
            .into());
        }
        Ok(Sizes { min_pixels, max_pixels, ..usual })
    }

    fn size(&mut self) -> Result<PixelBounds, Unserved> {
        let size = match self.value("size") {
            None => return Ok(PixelBounds::default()),
            Some(Value::Object(size)) => size,
            Some(other) => {
                return Err(format!(
                    "size: expected shortest_edge and longest_edge, found {other}"
                )
                .into());
            }
        };
        let mut size = Fields { of: size };
        // Files of Qwen2-VL have the older names here, some of them beside the new ones.
        let (older_min, older_max) = (size.whole("min_pixels")?, size.whole("max_pixels")?);
        let bounds = PixelBounds {
            min: size.whole("shortest_edge")?.or(older_min),
            max: size.whole("longest_edge")?.or(older_max),
        };
        match size.of.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(bounds),
            Some((key, _)) => Err(format!(
                "size: expected shortest_edge and longest_edge (both in pixels of area), found {key}"
            )
            .into()),
        }
    }

    /// `usual`: by what numbers are moved and divided if no setting says so.
    fn normalization(&mut self, usual: Option<Colours>) -> Result<Normalization, Unserved> {
        let rescale = match (self.flag("do_rescale")?, self.number("rescale_factor")?) {
            (true, factor) => factor.unwrap_or(1.0 / 255.0),
            (false, _) => 1.0,
        };
        let (mean, deviation) = (self.colours("image_mean")?, self.colours("image_std")?);
        let normalizes = self.flag_or("do_normalize", usual.is_some())?;
        let (mean, deviation) = match normalizes {
            true => {
                let usual = usual.unwrap_or(CENTRED);
                (mean.unwrap_or(usual.mean), deviation.unwrap_or(usual.deviation))
            }
            false => ([0.0; 3], [1.0; 3]),
        };
        let scale = deviation.map(|deviation| (rescale / deviation) as f32);
        let bias = [0, 1, 2].map(|colour| (-mean[colour] / deviation[colour]) as f32);
        if scale.iter().chain(&bias).any(|number| !number.is_finite()) || scale.contains(&0.0) {
            return Err(format!(
                "image_std, rescale_factor: expected finite numbers other than 0, found {deviation:?} and {rescale}"
            )
            .into());
        }
        Ok(Normalization { scale, bias })
    }
}

#[cfg(test)]
mod tests;
