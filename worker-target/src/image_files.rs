//! Pixels of images, from the files in which the gateway leaves them. They are read once, when a
//! request arrives, and stay as long as the request: a preempted sequence needs them again.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::OFlag;
use paceline_proto::status::{Reason, ReasonStatus as _, Refusal};
use sha2::{Digest as _, Sha256};
use tonic::Status;

/// Most bytes of pixels of all requests together. The largest image of any supported model has
/// 38 MB.
const MAX_PIXEL_BYTES: u64 = 1 << 30;

/// An image whose pixels are not read yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnnouncedImage {
    /// Field of the message with the image, for errors.
    pub(crate) field: String,
    /// A plain file name.
    pub(crate) file: String,
    /// Size of the file.
    pub(crate) bytes: u64,
    pub(crate) digest: [u8; 32],
    /// Patches from top to bottom.
    pub(crate) rows: u32,
    /// Patches from left to right.
    pub(crate) columns: u32,
    pub(crate) scale: [f32; 3],
    pub(crate) bias: [f32; 3],
}

/// An image as the vision tower takes it.
#[derive(Clone, Debug)]
pub(crate) struct LoadedImage {
    pub(crate) pixels: StoredPixels,
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    pub(crate) scale: [f32; 3],
    pub(crate) bias: [f32; 3],
}

/// Pixels of one image. They count towards the bound until their last holder drops them.
#[derive(Clone, Debug)]
pub(crate) struct StoredPixels(Arc<CountedBytes>);

#[derive(Debug)]
struct CountedBytes {
    bytes: Vec<u8>,
    /// Bytes of all images together.
    total: Arc<AtomicU64>,
}

impl Deref for StoredPixels {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes.capacity() as u64, Ordering::Relaxed);
    }
}

/// The folder of image files, and the bound of their pixels.
#[derive(Clone, Debug)]
pub(crate) struct ImageFiles {
    dir: PathBuf,
    /// Bytes of pixels in memory.
    total: Arc<AtomicU64>,
    limit: u64,
}

impl ImageFiles {
    /// The image files in this folder.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, total: Arc::default(), limit: MAX_PIXEL_BYTES }
    }

    /// Reads the files of images, and removes each. Blocks.
    ///
    /// # Errors
    /// The first image that differs from its announcement, or for which there is no memory at this
    /// moment. The gateway removes the files that were not read.
    pub(crate) fn read(&self, announced: &[AnnouncedImage]) -> Result<Vec<LoadedImage>, Status> {
        announced.iter().map(|image| self.one(image)).collect()
    }

    fn one(&self, announced: &AnnouncedImage) -> Result<LoadedImage, Status> {
        let AnnouncedImage { field, file, bytes, digest, rows, columns, scale, bias } = announced;
        let invalid = |name: &str, what: String| {
            Reason::InvalidArgument.field(&format!("{field}.{name}"), what)
        };
        let path = self.dir.join(file);
        // No link is followed, and opening a pipe does not wait for its other end.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(&path);
        let unreadable = |error: std::io::Error| {
            invalid(
                "file",
                format!(
                    "expected the image's pixels, which cannot be read: {error}; send the request again"
                ),
            )
        };
        let mut opened = opened.map_err(unreadable)?;
        let about = opened.metadata().map_err(unreadable)?;
        if !about.is_file() || about.len() != *bytes {
            let found = if about.is_file() {
                format!("{} bytes", about.len())
            } else {
                "something else".to_owned()
            };
            return Err(invalid(
                "file",
                format!("expected a file of {bytes} bytes, found {found}; send the request again"),
            ));
        }
        let pixels = self.pixels(&mut opened, *bytes, unreadable)?;
        if digest_of(*rows, *columns, scale, bias, &pixels) != *digest {
            return Err(invalid(
                "digest",
                "expected the digest of the pixels and their sizes, found another's".into(),
            ));
        }
        if let Err(error) = std::fs::remove_file(&path) {
            // The gateway removes what is left.
            tracing::warn!(%error, "cannot remove an image's file");
        }
        Ok(LoadedImage { pixels, rows: *rows, columns: *columns, scale: *scale, bias: *bias })
    }

    fn pixels(
        &self,
        file: &mut File,
        bytes: u64,
        unreadable: impl Fn(std::io::Error) -> Status,
    ) -> Result<StoredPixels, Status> {
        let before = self.total.fetch_add(bytes, Ordering::Relaxed);
        // Dropping `held` subtracts its capacity, which is 0 until memory is reserved.
        let mut held = CountedBytes { bytes: vec![], total: self.total.clone() };
        if before + bytes > self.limit {
            self.total.fetch_sub(bytes, Ordering::Relaxed);
            let text = format!(
                "{bytes} bytes of pixels beside the {before} that are held are more than the {} that may be",
                self.limit
            );
            return Err(Refusal::new(Reason::QueueFull, text).into());
        }
        if let Err(error) = held.bytes.try_reserve_exact(bytes as usize) {
            self.total.fetch_sub(bytes, Ordering::Relaxed);
            tracing::error!(%error, bytes, "no memory for an image");
            return Err(Reason::QueueFull.status("there is no memory for the image at this moment"));
        }
        // The allocator may give more than was asked for.
        self.total.fetch_add(held.bytes.capacity() as u64 - bytes, Ordering::Relaxed);
        file.take(bytes).read_to_end(&mut held.bytes).map_err(&unreadable)?;
        if held.bytes.len() as u64 != bytes {
            return Err(unreadable(std::io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(StoredPixels(Arc::new(held)))
    }
}

/// The digest that identifies an image (generation.proto).
fn digest_of(
    rows: u32,
    columns: u32,
    scale: &[f32; 3],
    bias: &[f32; 3],
    pixels: &[u8],
) -> [u8; 32] {
    let mut hash = Sha256::new();
    [rows, columns].iter().for_each(|size| hash.update(size.to_le_bytes()));
    scale.iter().chain(bias).for_each(|number| hash.update(number.to_le_bytes()));
    hash.update(pixels);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct House {
        dir: tempfile::TempDir,
        files: ImageFiles,
    }

    impl House {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let files = ImageFiles { limit: 100, ..ImageFiles::new(dir.path().into()) };
            Self { dir, files }
        }

        fn announced(&self, file: &str, pixels: &[u8]) -> AnnouncedImage {
            std::fs::write(self.dir.path().join(file), pixels).expect("writable");
            let (rows, columns, scale, bias) = (2, 4, [0.5, 0.25, 0.125], [-1.0, 0.0, 1.0]);
            let (digest, bytes) =
                (digest_of(rows, columns, &scale, &bias, pixels), pixels.len() as u64);
            AnnouncedImage {
                field: "images[3]".into(),
                file: file.into(),
                bytes,
                digest,
                rows,
                columns,
                scale,
                bias,
            }
        }

        fn refused(&self, announced: AnnouncedImage) -> (Option<Reason>, String) {
            let status = self.files.read(&[announced]).expect_err("refused");
            (Reason::of(&status), status.message().to_owned())
        }
    }

    #[test]
    fn pixels_are_read_once_and_counted_until_they_are_dropped() {
        let house = House::new();
        let announced = house.announced("a", &[7; 60]);
        let shown = house.files.read(std::slice::from_ref(&announced)).expect("fine");
        assert_eq!((&*shown[0].pixels, shown[0].rows, shown[0].columns), (&[7; 60][..], 2, 4));
        assert!(!house.dir.path().join("a").exists());
        assert_eq!(house.refused(announced).0, Some(Reason::InvalidArgument), "it was removed");
        let more = house.announced("b", &[8; 60]);
        assert_eq!(house.refused(more.clone()).0, Some(Reason::QueueFull));
        drop(shown);
        assert_eq!(house.files.read(&[more]).expect("there is room now").len(), 1);
        assert_eq!(house.files.total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_image_that_differs_from_its_announcement_is_refused_by_field() {
        let house = House::new();
        let good = house.announced("good", &[7; 60]);
        let refused = |change: &dyn Fn(&mut AnnouncedImage)| {
            let mut announced = good.clone();
            change(&mut announced);
            let (reason, message) = house.refused(announced);
            assert_eq!(reason, Some(Reason::InvalidArgument), "{message}");
            message
        };
        assert!(refused(&|a| a.file = "nowhere".into()).contains("cannot be read"));
        assert!(refused(&|a| a.bytes = 61).contains("expected a file of 61 bytes, found 60 bytes"));
        assert!(refused(&|a| a.bytes = 59).contains("found 60 bytes"));
        for change in [
            |a: &mut AnnouncedImage| a.digest[31] ^= 1,
            |a: &mut AnnouncedImage| a.rows = 4,
            |a: &mut AnnouncedImage| a.scale[2] = 0.0,
            |a: &mut AnnouncedImage| a.bias[0] = 1.0,
        ] {
            assert!(refused(&|a| change(a)).contains("digest"));
        }
        std::os::unix::fs::symlink(house.dir.path().join("good"), house.dir.path().join("link"))
            .expect("a link");
        assert!(refused(&|a| a.file = "link".into()).contains("cannot be read"));
        std::fs::create_dir(house.dir.path().join("folder")).expect("a folder");
        assert!(refused(&|a| a.file = "folder".into()).contains("something else"));
        nix::unistd::mkfifo(&house.dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU)
            .expect("a pipe");
        assert!(refused(&|a| a.file = "pipe".into()).contains("something else"));
        assert_eq!(house.files.total.load(Ordering::Relaxed), 0, "refused images hold nothing");
        house.files.read(std::slice::from_ref(&good)).expect("it is still there");
    }

    /// The digest of generation.proto, worked out by another program: python3, hashlib and struct.
    #[test]
    fn the_digest_is_the_one_the_contract_names() {
        let digest = digest_of(2, 4, &[0.5, 0.25, 0.125], &[-1.0, 0.0, 1.0], &[1, 2, 3]);
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "4ad190808e464f8f2b174ca844f6895ddff6db132bd102b93e28a2677e5fa41f");
    }
}
