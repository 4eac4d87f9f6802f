//! What the workers' programs print of a device and of a model: one JSON object on standard output.

use serde::{Deserialize, Serialize};

/// What `paceline-target --device` prints: facts that need the library that computes, of the device and of
/// the files that it was asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Whether it is a GPU.
    pub on_gpu: bool,
    /// Instruction set of the project's own kernels; none where the library computes alone.
    pub instructions: Option<String>,
    /// Bytes that a model can use now, if the system tells.
    pub usable_bytes: Option<u64>,
    /// The drafter that was named.
    pub drafter: Option<DrafterReport>,
}

/// A drafter beside the target that was named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrafterReport {
    /// Its files, and what they take; none if they cannot be read.
    #[serde(flatten)]
    pub plan: Option<DrafterFiles>,
    /// Whether it goes with the target.
    pub fits: bool,
    /// Why it does not.
    pub reason: Option<String>,
}

/// What the files of a drafter are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrafterFiles {
    /// Its kind.
    pub kind: String,
    /// Rows of its blocks.
    pub block: i32,
    /// Numbers that its tensors hold.
    pub parameters: u64,
    /// Bytes of its tensors in the files.
    pub disk_bytes: u64,
    /// Bytes of its tensors once they are loaded.
    pub memory_bytes: u64,
}

/// What `paceline-gateway --check-model` prints of a model: facts of its text and its images. One JSON
/// object on standard output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayReport {
    /// What its chat template calls and the template engine lacks.
    pub lacks: Vec<String>,
    /// Limits of images; none if it reads no images.
    pub images: Option<ImageReport>,
}

/// Limits of the images of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageReport {
    /// Images in one request.
    pub max_images: u32,
    /// Pixels of an image as it is sent.
    pub max_pixels: u64,
    /// Pixels as which an image is read at most.
    pub read_pixels: u64,
    /// Tokens of an image at most.
    pub max_tokens: u32,
}
