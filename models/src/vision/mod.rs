//! Vision towers: from an image's pixels to the rows of a prompt that take the place of its
//! placeholders. A tower belongs to its target's weights. The caller keeps the features.

mod attention;
mod bicubic;
mod gemma;
mod glm;
mod grid;
mod parts;
mod positions;
mod qwen;
mod siglip;
mod windows;

pub(crate) use gemma::{GemmaText, GemmaTower, UnifiedTower};
pub(crate) use glm::{GlmKind, GlmTower};
pub use positions::{ImageForm, ImagePlacement, positions};
pub(crate) use qwen::{Deepstack, Generation, QwenTower, TextModelSizes};
pub(crate) use siglip::SiglipTower;

use mlx_rs::Array;

use crate::error::{ModelError, Result};
use crate::layers::RopeTables;
use windows::WindowRun;

/// Properties of a tower for its callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisionInfo {
    /// Pixels of a patch's side.
    pub patch: u32,
    /// Patches of a side that become one row of the prompt.
    pub merge: u32,
    /// The id that stands in a prompt for each row of an image.
    pub image_token: u32,
    /// Number of blocks that [`Vision::advance`] computes.
    pub blocks: usize,
    /// Whether an image's rows attend to one another both ways, so that all of them must be in one
    /// forward. Otherwise they attend to earlier rows, as text does, and a chunk may end anywhere.
    pub whole: bool,
    /// Rows of an image in a prompt, and their positions.
    pub form: ImageForm,
    /// Most rows of an image, if the model has a bound.
    pub most_rows: Option<u32>,
}

impl VisionInfo {
    /// Properties of a tower whose rows stand in a grid and see no later ones. `patch` and `merge` are
    /// sizes of its config.
    fn of_grid(patch: i32, merge: i32, blocks: usize, image_token: u32) -> Self {
        Self {
            patch: patch as u32,
            merge: merge as u32,
            image_token,
            blocks,
            form: ImageForm::Grid,
            whole: false,
            most_rows: None,
        }
    }
}

/// A resized image. The number of patches of each side is a multiple of [`VisionInfo::merge`].
#[derive(Clone, Copy, Debug)]
pub struct ImagePixels<'a> {
    /// Rows from the top, columns from the left, red green blue: `rows · columns · patch² · 3`
    /// bytes.
    pub pixels: &'a [u8],
    /// Patches from top to bottom.
    pub rows: u32,
    /// Patches from left to right.
    pub columns: u32,
    /// A byte b of channel c enters the tower as `b · scale[c] + bias[c]`.
    pub scale: [f32; 3],
    /// See `scale`.
    pub bias: [f32; 3],
}

impl ImagePixels<'_> {
    /// Checks that the parts agree with each other and with the tower.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self, info: &VisionInfo) -> Result<()> {
        let bad = |what: String| Err(ModelError::Batch(what));
        let Self { rows, columns, .. } = *self;
        if rows == 0 || columns == 0 || rows % info.merge != 0 || columns % info.merge != 0 {
            return bad(format!(
                "expected an image of a multiple of {} patches each way, found {rows} x {columns}",
                info.merge
            ));
        }
        let of_prompt = info.form.rows(rows / info.merge, columns / info.merge);
        if let Some(most) = info.most_rows.filter(|most| of_prompt > u64::from(*most)) {
            return bad(format!(
                "expected an image of at most {most} rows of the prompt, found {of_prompt}"
            ));
        }
        // Wide enough for any sizes.
        let bytes = u128::from(rows) * u128::from(columns) * u128::from(info.patch).pow(2) * 3;
        if bytes != self.pixels.len() as u128 {
            return bad(format!(
                "expected {bytes} bytes for {rows} x {columns} patches, found {}",
                self.pixels.len()
            ));
        }
        if u64::from(rows) * u64::from(columns) > i32::MAX as u64 {
            let most = i32::MAX;
            return bad(format!(
                "expected an image of at most {most} patches, found {rows} x {columns}"
            ));
        }
        if self.scale.iter().chain(&self.bias).any(|number| !number.is_finite()) {
            return bad(format!(
                "expected finite scale and bias, found {:?} and {:?}",
                self.scale, self.bias
            ));
        }
        Ok(())
    }
}

/// Output of a tower for one image: rows for [`crate::Override`], in the order of the placeholders.
#[derive(Clone, Debug)]
pub struct Features {
    /// `[rows, hidden]`, in place of the placeholders' embeddings.
    pub embeddings: Array,
    /// `[rows, hidden]` to be added after a layer of the target.
    pub after_layer: Vec<(usize, Array)>,
}

impl Features {
    /// Rows of the prompt.
    pub fn rows(&self) -> i32 {
        self.embeddings.dim(0)
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> u64 {
        let arrays = self.after_layer.iter().map(|(_, array)| array).chain([&self.embeddings]);
        arrays.map(|array| array.nbytes() as u64).sum()
    }
}

/// An image on its way through a tower.
#[derive(Clone, Debug)]
pub struct ImageEncoding {
    /// Hidden states after the blocks computed so far `[patches, width]`.
    pub(crate) hidden: Array,
    /// Patches from top to bottom and from left to right.
    pub(crate) grid: (u32, u32),
    /// How heads are rotated by their patches' places, if they are.
    pub(crate) rope: Option<RopeTables>,
    /// Windows of patches that attend to one another alone in some blocks. Empty without any.
    windows: Vec<WindowRun>,
    /// For each row of the prompt where its patches lie, counted in rows, if patches are not in the
    /// order of rows.
    order: Option<Vec<i32>>,
    /// Number of blocks computed.
    pub(crate) done: usize,
    /// Rows to be added after layers of the target, as far as they are computed.
    pub(crate) after_layer: Vec<(usize, Array)>,
}

impl ImageEncoding {
    /// An image whose patches are embedded, `hidden` `[patches, width]`, in the order of the rows.
    fn new(hidden: Array, grid: (u32, u32), rope: Option<RopeTables>) -> Self {
        Self { hidden, grid, rope, windows: vec![], order: None, done: 0, after_layer: vec![] }
    }

    /// Computes at most `blocks` (at least one) more of `all` blocks by `forward`, which gets the
    /// number of a block, and evaluates each. Returns the features when all are done; `rows` computes
    /// those of the prompt.
    fn advance(
        &mut self,
        blocks: usize,
        all: usize,
        mut forward: impl FnMut(&mut Self, usize) -> Result<Array>,
        rows: impl FnOnce(&Self) -> Result<Array>,
    ) -> Result<Option<Features>> {
        let until = self.done.saturating_add(blocks.max(1)).min(all);
        while self.done < until {
            let hidden = forward(self, self.done)?;
            hidden.eval()?;
            self.hidden = hidden;
            self.done += 1;
        }
        if self.done < all {
            return Ok(None);
        }
        let embeddings = rows(self)?;
        embeddings.eval()?;
        Ok(Some(Features { embeddings, after_layer: self.after_layer.clone() }))
    }

    /// Number of patches. The time of a block depends on it.
    pub fn patches(&self) -> u32 {
        self.grid.0 * self.grid.1
    }

    /// Number of blocks computed.
    pub fn done(&self) -> usize {
        self.done
    }
}

/// A target's vision tower. `advance` evaluates, so that its caller can do other work between
/// blocks.
pub trait Vision {
    /// Properties of the tower.
    fn info(&self) -> &VisionInfo;

    /// Embeds an image: patches and their positions.
    ///
    /// # Errors
    /// An image that does not fit; MLX's own.
    fn begin(&self, image: &ImagePixels<'_>) -> Result<ImageEncoding>;

    /// Computes at most `blocks` more blocks (at least one) and evaluates. Returns the features
    /// when all blocks are done.
    ///
    /// # Errors
    /// MLX's own.
    fn advance(&self, pass: &mut ImageEncoding, blocks: usize) -> Result<Option<Features>>;
}
