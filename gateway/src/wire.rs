//! Own types as messages of the protocol between processes.

use paceline_proto::internal::v1::Picture;

use crate::images::PromptImage;

/// Images as the target gets them.
pub fn pictures(images: &[PromptImage]) -> Vec<Picture> {
    let picture = |image: &PromptImage| Picture {
        file: image.file.clone(),
        bytes: image.bytes,
        digest: image.digest.clone(),
        first: image.start,
        rows: image.grid.rows,
        columns: image.grid.columns,
        scale: image.scale.to_vec(),
        bias: image.bias.to_vec(),
    };
    images.iter().map(picture).collect()
}
