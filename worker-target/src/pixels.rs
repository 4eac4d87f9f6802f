//! Pixels of pictures, from the files in which the gateway leaves them. Read once, when a request
//! comes, and kept as long as it lives: it may have to be read from the beginning again.

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

use crate::request::Announced;

/// Bytes of pixels of all requests together. Those of the largest picture a model of today takes
/// are 38 MB.
const MOST_BYTES: u64 = 1 << 30;

/// A picture as the tower takes it in.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) pixels: Pixels,
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    pub(crate) scale: [f32; 3],
    pub(crate) bias: [f32; 3],
}

/// Pixels; counted until the last holder drops them.
#[derive(Clone, Debug)]
pub(crate) struct Pixels(Arc<Held>);

#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    all: Arc<AtomicU64>,
}

impl Deref for Pixels {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes.capacity() as u64, Ordering::Relaxed);
    }
}

/// Where pixels come from.
#[derive(Clone, Debug)]
pub(crate) struct Gallery {
    dir: PathBuf,
    all: Arc<AtomicU64>,
    most: u64,
}

impl Gallery {
    /// Files in this folder.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, all: Arc::default(), most: MOST_BYTES }
    }

    /// Reads the files of pictures, and removes each. Blocks.
    ///
    /// # Errors
    /// The first that is not what was announced, or for which there is no room at this moment. What
    /// was not read stays for the gateway to remove.
    pub(crate) fn read(&self, announced: &[Announced]) -> Result<Vec<Shown>, Status> {
        announced.iter().map(|picture| self.one(picture)).collect()
    }

    fn one(&self, announced: &Announced) -> Result<Shown, Status> {
        let Announced { field, file, bytes, digest, rows, columns, scale, bias } = announced;
        let invalid = |name: &str, what: String| {
            Reason::InvalidArgument.field(&format!("{field}.{name}"), what)
        };
        let path = self.dir.join(file);
        // No link is followed, and a pipe's other end is not waited for.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(&path);
        let unreadable = |error: std::io::Error| {
            invalid(
                "file",
                format!(
                    "expected the picture's pixels, which cannot be read: {error}; send the request again"
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
            tracing::warn!(%error, "cannot remove a picture's file");
        }
        Ok(Shown { pixels, rows: *rows, columns: *columns, scale: *scale, bias: *bias })
    }

    fn pixels(
        &self,
        file: &mut File,
        bytes: u64,
        unreadable: impl Fn(std::io::Error) -> Status,
    ) -> Result<Pixels, Status> {
        let before = self.all.fetch_add(bytes, Ordering::Relaxed);
        // From here on they are counted back when this is dropped.
        let mut held = Held { bytes: vec![], all: self.all.clone() };
        if before + bytes > self.most {
            self.all.fetch_sub(bytes, Ordering::Relaxed);
            let text = format!(
                "{bytes} bytes of pixels beside the {before} that are held are more than the {} that may be",
                self.most
            );
            return Err(Refusal::new(Reason::QueueFull, text).into());
        }
        if let Err(error) = held.bytes.try_reserve_exact(bytes as usize) {
            self.all.fetch_sub(bytes, Ordering::Relaxed);
            tracing::error!(%error, bytes, "no memory for a picture");
            return Err(
                Reason::QueueFull.status("there is no memory for the picture at this moment")
            );
        }
        // The allocator may give more than was asked for.
        self.all.fetch_add(held.bytes.capacity() as u64 - bytes, Ordering::Relaxed);
        file.take(bytes).read_to_end(&mut held.bytes).map_err(&unreadable)?;
        if held.bytes.len() as u64 != bytes {
            return Err(unreadable(std::io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(Pixels(Arc::new(held)))
    }
}

/// What a picture is known by (generation.proto).
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
        gallery: Gallery,
    }

    impl House {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let gallery = Gallery { most: 100, ..Gallery::new(dir.path().into()) };
            Self { dir, gallery }
        }

        fn announced(&self, file: &str, pixels: &[u8]) -> Announced {
            std::fs::write(self.dir.path().join(file), pixels).expect("writable");
            let (rows, columns, scale, bias) = (2, 4, [0.5, 0.25, 0.125], [-1.0, 0.0, 1.0]);
            let (digest, bytes) =
                (digest_of(rows, columns, &scale, &bias, pixels), pixels.len() as u64);
            Announced {
                field: "pictures[3]".into(),
                file: file.into(),
                bytes,
                digest,
                rows,
                columns,
                scale,
                bias,
            }
        }

        fn refused(&self, announced: Announced) -> (Option<Reason>, String) {
            let status = self.gallery.read(&[announced]).expect_err("refused");
            (Reason::of(&status), status.message().to_owned())
        }
    }

    #[test]
    fn pixels_are_read_once_and_counted_until_they_are_dropped() {
        let house = House::new();
        let announced = house.announced("a", &[7; 60]);
        let shown = house.gallery.read(std::slice::from_ref(&announced)).expect("fine");
        assert_eq!((&*shown[0].pixels, shown[0].rows, shown[0].columns), (&[7; 60][..], 2, 4));
        assert!(!house.dir.path().join("a").exists());
        assert_eq!(house.refused(announced).0, Some(Reason::InvalidArgument), "it was removed");
        let more = house.announced("b", &[8; 60]);
        assert_eq!(house.refused(more.clone()).0, Some(Reason::QueueFull));
        drop(shown);
        assert_eq!(house.gallery.read(&[more]).expect("there is room now").len(), 1);
        assert_eq!(house.gallery.all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_not_as_announced_is_refused_by_name() {
        let house = House::new();
        let good = house.announced("good", &[7; 60]);
        let refused = |change: &dyn Fn(&mut Announced)| {
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
            |a: &mut Announced| a.digest[31] ^= 1,
            |a: &mut Announced| a.rows = 4,
            |a: &mut Announced| a.scale[2] = 0.0,
            |a: &mut Announced| a.bias[0] = 1.0,
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
        assert_eq!(house.gallery.all.load(Ordering::Relaxed), 0, "what was refused holds nothing");
        house.gallery.read(std::slice::from_ref(&good)).expect("it is still there");
    }

    /// The digest of generation.proto, worked out by another program: python3, hashlib and struct.
    #[test]
    fn the_digest_is_the_one_the_contract_names() {
        let digest = digest_of(2, 4, &[0.5, 0.25, 0.125], &[-1.0, 0.0, 1.0], &[1, 2, 3]);
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "4ad190808e464f8f2b174ca844f6895ddff6db132bd102b93e28a2677e5fa41f");
    }
}
