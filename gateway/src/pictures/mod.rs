//! Pictures of requests: from a client's bytes to resized pixels in a file that the target reads.
//!
//! Bytes from outside are unpacked here, in the process without weights: what a file says of itself
//! is checked first ([`container`]), then it is unpacked within bounds ([`decode`]), made the size
//! the model wants ([`resize`]) and written down ([`store`]). All of it on threads of its own, at
//! most two pictures at once in this process, and so many bytes. Nothing is fetched, and nothing of
//! a picture is logged.

pub mod address;
pub mod container;
pub mod decode;
pub mod processor;
pub mod resize;
pub mod store;

mod place;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use paceline_process::clock::monotonic_ns;
use paceline_process::config::LimitsConfig;
use paceline_process::runtime_dir::is_full;
use paceline_proto::internal::v1::Picture;
use paceline_proto::status::{Reason, ReasonStatus as _, Refusal};
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use crate::error;
use container::Header;
use decode::Bounds;
use processor::Processor;
use store::{Link, Store, Stored};

pub use place::{Unsaid, expand};
pub use store::prepare;

/// Pictures worked on at once in this process.
const SEATS: usize = 2;
/// Bytes that decoding may take, of all pictures that are worked on.
const DECODING_BYTES: u64 = 176 << 20;
/// What bytes are counted in: a semaphore's permits are few.
const UNIT: u64 = 1 << 10;

/// A picture as a client sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The field it came in.
    pub field: String,
    /// What came.
    pub form: Form,
}

/// How a picture came. Its own, so that no bytes of it are printed.
#[derive(Clone, PartialEq, Eq)]
pub enum Form {
    /// The file.
    File(Bytes),
    /// An address, with the file in it if it can be served.
    Address(String),
}

impl std::fmt::Debug for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Form::File(file) => write!(f, "File({} bytes)", file.len()),
            Form::Address(url) => write!(f, "Address({} bytes)", url.len()),
        }
    }
}

/// A picture that was looked at: it can be served as far as its file says.
#[derive(Debug)]
pub struct Seen {
    field: String,
    file: Bytes,
    header: Header,
    grid: (u32, u32),
    /// Rows of the prompt it becomes.
    pub tokens: u64,
}

/// Pictures in files, for as long as their request lives.
#[derive(Debug)]
pub struct Kept {
    stored: Vec<Stored>,
    links: Vec<Link>,
    /// What the target is told, but for places in the prompt.
    pictures: Vec<Picture>,
    /// What the work took.
    pub times: Times,
}

/// What pictures of a request took, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Unpacking.
    pub decode_ms: f64,
    /// Resizing and writing.
    pub resize_ms: f64,
}

/// Whether a request's pictures can be served at all, before any is looked at; what they are made
/// by if so.
///
/// # Errors
/// The model does not see; there are too many.
pub fn admit<'a>(
    encoded: &[Encoded],
    processor: Option<&'a Arc<Processor>>,
    vision: bool,
    limits: &LimitsConfig,
) -> Result<Option<&'a Arc<Processor>>, Status> {
    let Some(first) = encoded.first() else { return Ok(None) };
    let Some(processor) = processor.filter(|_| vision) else {
        let field = &first.field;
        let what = format!(
            "{field}: a picture was sent, and this service has no model that sees; send text only"
        );
        return Err(Reason::NoVision.field(field, what));
    };
    let (most, found) = (limits.max_images, encoded.len());
    if found > most as usize {
        let field =
            encoded.get(most as usize).map_or(first.field.as_str(), |picture| &picture.field);
        return Err(bad(
            field,
            &format!(
                "expected at most {most} pictures in a request (limits.max_images), found {found}"
            ),
        ));
    }
    Ok(Some(processor))
}

/// Works on pictures.
#[derive(Debug)]
pub struct Pictures {
    seats: Arc<Semaphore>,
    room: Arc<Semaphore>,
    store: Arc<Store>,
    bounds: Bounds,
    patience: Duration,
}

impl Pictures {
    /// Writes to `store`, within the operator's limits.
    pub fn new(store: Store, limits: &LimitsConfig) -> Self {
        Self {
            seats: Arc::new(Semaphore::new(SEATS)),
            room: Arc::new(Semaphore::new((DECODING_BYTES / UNIT) as usize)),
            store: Arc::new(store),
            bounds: Bounds { pixels: limits.max_image_pixels, bytes: DECODING_BYTES },
            patience: Duration::from_secs(limits.queue_wait_s),
        }
    }

    /// Looks at files without unpacking them, in order.
    ///
    /// # Errors
    /// BAD_IMAGE of the first that cannot be served; there is no place to work in time.
    pub async fn look(
        &self,
        encoded: Vec<Encoded>,
        processor: &Arc<Processor>,
    ) -> Result<Vec<Seen>, Status> {
        let (processor, bounds) = (Arc::clone(processor), self.bounds);
        let seat = self.wait(Arc::clone(&self.seats).acquire_owned()).await?;
        apart(move || {
            let _seat = seat;
            encoded.into_iter().map(|encoded| one_look(encoded, &processor, bounds)).collect()
        })
        .await
    }

    /// Unpacks pictures and drops them: whether they are whole.
    ///
    /// # Errors
    /// BAD_IMAGE of the first that is broken; there is no place to work in time.
    pub async fn check(&self, seen: Vec<Seen>) -> Result<(), Status> {
        for Seen { field, file, header, .. } in seen {
            let places = self.places(&header).await?;
            apart(move || {
                let _places = places;
                unpacked(&field, &file, &header).map(|_| ())
            })
            .await?;
        }
        Ok(())
    }

    /// Unpacks pictures, resizes them and writes them down.
    ///
    /// # Errors
    /// BAD_IMAGE of the first that is broken; there is no place to work in time, or none for their
    /// files.
    pub async fn keep(&self, seen: Vec<Seen>, processor: &Arc<Processor>) -> Result<Kept, Status> {
        let mut kept =
            Kept { stored: vec![], links: vec![], pictures: vec![], times: Times::default() };
        for seen in seen {
            let places = self.places(&seen.header).await?;
            let (processor, store) = (Arc::clone(processor), Arc::clone(&self.store));
            let work = move || {
                let _places = places;
                write(seen, &processor, &store)
            };
            let (stored, picture, times) = apart(work).await?;
            kept.stored.push(stored);
            kept.pictures.push(picture);
            kept.times.decode_ms += times.decode_ms;
            kept.times.resize_ms += times.resize_ms;
        }
        Ok(kept)
    }

    /// A seat, and room for what decoding takes. Who has a seat waits for room only of others with
    /// one: no circle.
    async fn places(
        &self,
        header: &Header,
    ) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), Status> {
        // `look` passed what is over the bound.
        let units =
            u32::try_from(header.decoding_bytes.min(self.bounds.bytes) / UNIT).unwrap_or(u32::MAX);
        let both = async {
            let seat = Arc::clone(&self.seats).acquire_owned().await?;
            Ok((seat, Arc::clone(&self.room).acquire_many_owned(units).await?))
        };
        self.wait(both).await
    }

    async fn wait<T>(
        &self,
        place: impl Future<Output = Result<T, tokio::sync::AcquireError>>,
    ) -> Result<T, Status> {
        match tokio::time::timeout(self.patience, place).await {
            Ok(place) => place.map_err(|_| error::bug("the picture room is closed")),
            Err(_) => {
                let waited = self.patience.as_secs();
                let message = format!(
                    "waited {waited} s for other requests' pictures (limits.queue_wait_s); try again"
                );
                Err(Refusal::new(Reason::QueueWait, message).field("limits.queue_wait_s").into())
            }
        }
    }
}

impl Kept {
    /// What the target is told of them, each at its place. In files of the request's own.
    pub fn pictures(&self, first: &[u32]) -> Vec<Picture> {
        self.pictures
            .iter()
            .zip(first)
            .map(|(picture, first)| Picture { first: *first, ..picture.clone() })
            .collect()
    }

    /// The same pictures in files for one more reader.
    ///
    /// # Errors
    /// The files cannot be had.
    pub fn again(&mut self, pictures: &[Picture]) -> Result<Vec<Picture>, Status> {
        let mut linked = Vec::with_capacity(pictures.len());
        for (stored, picture) in self.stored.iter().zip(pictures) {
            let link = stored.link().map_err(|cause| unwritten(stored.store(), &cause))?;
            linked.push(Picture { file: link.name(), ..picture.clone() });
            self.links.push(link);
        }
        Ok(linked)
    }
}

/// What is asked of everything that comes from outside, in one call: looks at a file, unpacks it,
/// makes it the model's size. For tests and fuzzing.
///
/// # Errors
/// In words: why the picture cannot be served.
pub fn whole_way(
    file: &[u8],
    bounds: Bounds,
    processor: &Processor,
) -> Result<((u32, u32), Vec<u8>), String> {
    let header = decode::look(file, bounds)?;
    let grid = processor.grid(header.upright())?;
    let pixels = decode::decode(file, &header)?;
    let mut made = Vec::new();
    let out = |row: &[u8]| {
        made.extend_from_slice(row);
        Ok(())
    };
    resize::resize(pixels.size(), size(grid, processor), |y, line| pixels.row(y, line), out)
        .map_err(|error| error.to_string())?;
    Ok((grid, made))
}

/// Runs work on a thread that may be kept busy. A panic in it is that of a decoder: the picture is
/// refused, and the hook has logged where.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(error::bug("a panic while working on a picture")))
}

fn one_look(encoded: Encoded, processor: &Processor, bounds: Bounds) -> Result<Seen, Status> {
    let Encoded { field, form } = encoded;
    let look = || {
        let file = match form {
            Form::File(file) => file,
            Form::Address(url) => address::open(&url)?.into(),
        };
        let header = decode::look(&file, bounds)?;
        let grid = processor.grid(header.upright())?;
        Ok((file, header, grid))
    };
    let (file, header, grid) = look().map_err(|what: String| bad(&field, &what))?;
    Ok(Seen { field, file, header, grid, tokens: processor.tokens(grid) })
}

/// Pixels of a file. Its decoder's panic is a refusal of the file.
fn unpacked(field: &str, file: &[u8], header: &Header) -> Result<decode::Pixels, Status> {
    let work = AssertUnwindSafe(|| decode::decode(file, header));
    let panicked = |_| {
        Err("expected a whole picture, found one that its decoder cannot make sense of".to_owned())
    };
    catch_unwind(work).unwrap_or_else(panicked).map_err(|what| bad(field, &what))
}

fn size((rows, columns): (u32, u32), processor: &Processor) -> (u32, u32) {
    (columns * processor.patch, rows * processor.patch)
}

fn write(
    seen: Seen,
    processor: &Processor,
    store: &Arc<Store>,
) -> Result<(Stored, Picture, Times), Status> {
    let Seen { field, file, header, grid, .. } = seen;
    let begun = monotonic_ns();
    let pixels = unpacked(&field, &file, &header)?;
    drop(file);
    let unpacked = monotonic_ns();
    let (to, (rows, columns)) = (size(grid, processor), grid);
    let bytes = u64::from(to.0) * u64::from(to.1) * 3;
    let Processor { scale, bias, .. } = processor;
    let mut hasher = Sha256::new();
    [rows, columns].iter().for_each(|side| hasher.update(side.to_le_bytes()));
    scale.iter().chain(bias).for_each(|number| hasher.update(number.to_le_bytes()));
    let mut made = || {
        let mut writing = store.begin(bytes)?;
        let out = |row: &[u8]| {
            hasher.update(row);
            writing.write(row)
        };
        resize::resize(pixels.size(), to, |y, line| pixels.row(y, line), out)?;
        let digest = std::mem::take(&mut hasher).finalize().to_vec();
        Ok((writing.finish(&digest)?, digest))
    };
    let (stored, digest) = made().map_err(|cause: io::Error| unwritten(store, &cause))?;
    let (scale, bias) = (scale.to_vec(), bias.to_vec());
    let picture = Picture {
        file: stored.name(),
        bytes,
        digest: digest.into(),
        first: 0,
        rows,
        columns,
        scale,
        bias,
    };
    let ms = |from: i64, to: i64| to.saturating_sub(from) as f64 / 1e6;
    let times = Times { decode_ms: ms(begun, unpacked), resize_ms: ms(unpacked, monotonic_ns()) };
    Ok((stored, picture, times))
}

/// A picture that cannot be served.
fn bad(field: &str, what: &str) -> Status {
    Reason::BadImage.field(field, format!("{field}: {what}"))
}

/// A picture's file that cannot be written. Requests of text go on.
fn unwritten(store: &Store, cause: &io::Error) -> Status {
    if !is_full(cause) {
        return error::bug(&format!("a picture's file: {cause}"));
    }
    let message = match cause.raw_os_error() {
        // The store's own bound.
        None => "no room for more pictures until requests before this one have ended; try again",
        Some(_) => {
            store.found_full(cause);
            "the disk that pictures are kept on is full; send text only, or try again when the operator has made room"
        }
    };
    Refusal::new(Reason::QueueFull, message).field("pictures").into()
}

#[cfg(test)]
mod tests;
