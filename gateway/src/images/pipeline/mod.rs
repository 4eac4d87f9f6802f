//! The steps from an encoded image to a file for the target, on threads of their own.
//!
//! [`SEATS`] images are worked on at once in this process. What their decoders may use together is
//! bounded by [`DECODING_BYTES`]. A request that cannot start within `limits.queue_wait_s` is
//! refused.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use paceline_process::config::LimitsConfig;
use paceline_protocols::inference::images::ImageError;
use paceline_system::clock::monotonic_ns;
use paceline_system::platform::is_full;
use paceline_text::images::container::Header;
use paceline_text::images::decode::{self, Bounds};
use paceline_text::images::{
    EncodedImage, ImageProcessor, ImageSource, PatchGrid, address, resize,
};
use paceline_vocabulary::generation::PromptImage;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::ImageTimes;
use super::store::{FileLink, ImageFile, ImageStore};

/// Images worked on at once in this process.
const SEATS: usize = 2;
/// Bytes that decoding may take, of all images that are worked on.
const DECODING_BYTES: u64 = 176 << 20;
/// Bytes for each permit of the semaphore that counts [`DECODING_BYTES`]: a semaphore has at most
/// 2³² permits on some machines.
const BYTES_PER_PERMIT: u64 = 1 << 10;

/// An image whose file was inspected: it can be served as far as its file's structure shows.
#[derive(Debug)]
pub struct InspectedImage {
    field: String,
    file: Bytes,
    header: Header,
    grid: PatchGrid,
    /// Tokens of the prompt that the image becomes.
    pub tokens: u64,
}

/// Works on images.
#[derive(Debug)]
pub struct ImagePipeline {
    seats: Arc<Semaphore>,
    decoding_memory: Arc<Semaphore>,
    store: Arc<ImageStore>,
    bounds: Bounds,
    max_images: u32,
    queue_wait: Duration,
    /// The operator has the model served as text alone.
    text_alone: bool,
}

/// The right to work on one image. Its seat and its memory become free when it is dropped.
#[derive(Debug)]
struct WorkPermit {
    _seat: OwnedSemaphorePermit,
    _memory: OwnedSemaphorePermit,
}

impl ImagePipeline {
    /// Writes to `store`, within the operator's limits.
    pub fn new(store: ImageStore, limits: &LimitsConfig) -> Self {
        Self {
            seats: Arc::new(Semaphore::new(SEATS)),
            decoding_memory: Arc::new(Semaphore::new((DECODING_BYTES / BYTES_PER_PERMIT) as usize)),
            store: Arc::new(store),
            bounds: Bounds { pixels: limits.max_image_pixels, bytes: DECODING_BYTES },
            max_images: limits.max_images,
            queue_wait: Duration::from_secs(limits.queue_wait_s),
            text_alone: false,
        }
    }

    /// For a model that is served as text alone, if `text_alone` says so: requests with images are
    /// refused with that reason.
    pub fn with_text_alone(self, text_alone: bool) -> Self {
        Self { text_alone, ..self }
    }

    /// Inspects a request's files, in order, without decoding them. A request without images needs
    /// no `processor`, which is `None` if the served model reads no images.
    ///
    /// The first `earlier` images are of earlier turns, which clients resend for ever. Such an image
    /// is left out (`None`) if it cannot be served, and the oldest ones are if there are too many.
    ///
    /// # Errors
    /// The model reads no images; there are too many new ones; the first new image that cannot be
    /// served; no seat became free in time.
    pub async fn inspect(
        &self,
        encoded: Vec<EncodedImage>,
        earlier: usize,
        processor: Option<&Arc<ImageProcessor>>,
    ) -> Result<Vec<Option<InspectedImage>>, ImageError> {
        let Some(processor) = processor else {
            let Some(first) = encoded.get(earlier) else {
                return Ok(encoded.iter().map(|_| None).collect());
            };
            let field = first.field.clone();
            return Err(match self.text_alone {
                true => ImageError::TextAlone { field },
                false => ImageError::NoVision { field },
            });
        };
        let most = self.max_images as usize;
        if let Some(above) = encoded.get(earlier.saturating_add(most)) {
            let (field, limit) = (above.field.clone(), self.max_images);
            return Err(ImageError::TooMany { field, limit, found: encoded.len() - earlier });
        }
        if encoded.is_empty() {
            return Ok(vec![]);
        }
        // A quarter of the bound at a time: the prompt begins as before for the turns until the next
        // quarter, and the prefix cache has this beginning.
        let above = encoded.len().saturating_sub(most);
        let left_out = above.next_multiple_of((most / 4).max(1)).min(earlier);
        let (processor, bounds) = (Arc::clone(processor), self.bounds);
        let seat = self.wait(Arc::clone(&self.seats).acquire_owned()).await?;
        on_own_thread(move || {
            let _seat = seat;
            let one = |(at, encoded)| match at < left_out {
                true => Ok(None),
                false => match inspect(encoded, &processor, bounds) {
                    Err(ImageError::Bad { .. }) if at < earlier => Ok(None),
                    inspected => inspected.map(Some),
                },
            };
            encoded.into_iter().enumerate().map(one).collect()
        })
        .await
    }

    /// Decodes images and drops the pixels: checks that the files are whole.
    ///
    /// # Errors
    /// The first image that is broken; no seat or no memory became free in time.
    pub async fn verify(&self, images: Vec<InspectedImage>) -> Result<(), ImageError> {
        for InspectedImage { field, file, header, .. } in images {
            let permit = self.permit(&header).await?;
            on_own_thread(move || {
                let _permit = permit;
                decode(field, &file, &header).map(|_| ())
            })
            .await?;
        }
        Ok(())
    }

    /// Decodes images, resizes them and writes them to files.
    ///
    /// # Errors
    /// The first image that is broken; no seat or no memory became free in time; the file cannot be
    /// written.
    pub async fn store(
        &self,
        images: Vec<InspectedImage>,
        processor: &Arc<ImageProcessor>,
    ) -> Result<StoredImages, ImageError> {
        let mut all = StoredImages::default();
        for image in images {
            let permit = self.permit(&image.header).await?;
            let (processor, store) = (Arc::clone(processor), Arc::clone(&self.store));
            let work = move || {
                let _permit = permit;
                write(image, &processor, &store)
            };
            let StoredImage { file, image, times } = on_own_thread(work).await?;
            all.files.push(file);
            all.images.push(image);
            all.times.decode_ms += times.decode_ms;
            all.times.resize_ms += times.resize_ms;
        }
        Ok(all)
    }

    /// A seat, then memory for decoding. A request with a seat waits for memory only of others with
    /// a seat, so that no two requests wait for one another.
    async fn permit(&self, header: &Header) -> Result<WorkPermit, ImageError> {
        // `inspect` refused images above the bound.
        let bytes = header.decoding_bytes.min(self.bounds.bytes);
        let permits = u32::try_from(bytes / BYTES_PER_PERMIT).unwrap_or(u32::MAX);
        let both = async {
            let seat = Arc::clone(&self.seats).acquire_owned().await?;
            let memory = Arc::clone(&self.decoding_memory).acquire_many_owned(permits).await?;
            Ok(WorkPermit { _seat: seat, _memory: memory })
        };
        self.wait(both).await
    }

    async fn wait<T>(
        &self,
        permit: impl Future<Output = Result<T, tokio::sync::AcquireError>>,
    ) -> Result<T, ImageError> {
        match tokio::time::timeout(self.queue_wait, permit).await {
            Ok(permit) => permit.map_err(|_| ImageError::Bug("the image pipeline is closed")),
            Err(_) => Err(ImageError::QueueWait { waited_s: self.queue_wait.as_secs() }),
        }
    }
}

/// Images in files, for as long as their request lives.
#[derive(Debug, Default)]
pub struct StoredImages {
    files: Vec<ImageFile>,
    links: Vec<FileLink>,
    images: Vec<PromptImage>,
    /// How long the work took.
    pub times: ImageTimes,
}

impl StoredImages {
    /// Sets where the placeholders of each image start in the prompt.
    pub fn place(&mut self, starts: &[u32]) {
        for (image, start) in self.images.iter_mut().zip(starts) {
            image.start = *start;
        }
    }

    /// The images, in files for one reader.
    pub fn images(&self) -> &[PromptImage] {
        &self.images
    }

    /// Links the files of these images for one more reader. A reader removes the files it has read.
    ///
    /// # Errors
    /// A file cannot be linked.
    pub fn link_again(&mut self) -> Result<Vec<PromptImage>, ImageError> {
        let mut linked = Vec::with_capacity(self.images.len());
        for (file, image) in self.files.iter().zip(&self.images) {
            let link = file.link().map_err(|cause| unwritten(file.store(), cause))?;
            linked.push(PromptImage { file: link.name(), ..image.clone() });
            self.links.push(link);
        }
        Ok(linked)
    }
}

/// Runs work on a thread that may be kept busy. The panic hook has logged where a panic was.
async fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(ImageError::Bug("a panic while working on an image")))
}

fn inspect(
    encoded: EncodedImage,
    processor: &ImageProcessor,
    bounds: Bounds,
) -> Result<InspectedImage, ImageError> {
    let EncodedImage { field, source, detail } = encoded;
    let inspect = || {
        let file = match source {
            ImageSource::File(file) => file,
            ImageSource::Address(url) => address::open(&url)?.into(),
        };
        let header = decode::inspect(&file, bounds)?;
        let grid = processor.grid(header.upright(), detail)?;
        Ok((file, header, grid))
    };
    match inspect() {
        Ok((file, header, grid)) => {
            Ok(InspectedImage { field, file, header, grid, tokens: processor.tokens(grid) })
        }
        Err(problem) => Err(ImageError::Bad { field, problem }),
    }
}

/// Pixels of a file. If the decoder panics, the file is refused.
fn decode(field: String, file: &[u8], header: &Header) -> Result<decode::Pixels, ImageError> {
    let work = AssertUnwindSafe(|| decode::decode(file, header));
    let panicked =
        |_| Err("expected a whole image, found one that its decoder cannot make sense of".into());
    catch_unwind(work)
        .unwrap_or_else(panicked)
        .map_err(|problem| ImageError::Bad { field, problem })
}

/// One image in its file.
struct StoredImage {
    file: ImageFile,
    image: PromptImage,
    times: ImageTimes,
}

fn write(
    image: InspectedImage,
    processor: &ImageProcessor,
    store: &Arc<ImageStore>,
) -> Result<StoredImage, ImageError> {
    let InspectedImage { field, file, header, grid, .. } = image;
    let started_ns = monotonic_ns();
    let pixels = decode(field, &file, &header)?;
    drop(file);
    let decoded_ns = monotonic_ns();
    let size = processor.size(grid);
    let bytes = u64::from(size.width) * u64::from(size.height) * 3;
    let ImageProcessor { scale, bias, .. } = *processor;
    let mut hasher = Sha256::new();
    [grid.rows, grid.columns].iter().for_each(|side| hasher.update(side.to_le_bytes()));
    scale.iter().chain(&bias).for_each(|number| hasher.update(number.to_le_bytes()));
    let mut write = || {
        let mut unfinished = store.begin(bytes)?;
        let out = |row: &[u8]| {
            hasher.update(row);
            unfinished.write(row)
        };
        resize::resize(pixels.size(), size, |y, line| pixels.row(y, line), out)?;
        let digest = std::mem::take(&mut hasher).finalize().to_vec();
        Ok((unfinished.finish(&digest)?, digest))
    };
    let (file, digest) = write().map_err(|cause| unwritten(store, cause))?;
    let name = file.name();
    let image = PromptImage {
        file: name,
        bytes,
        digest,
        start: 0,
        grid,
        scale: scale.to_vec(),
        bias: bias.to_vec(),
    };
    let ms = |from: i64, to: i64| to.saturating_sub(from) as f64 / 1e6;
    let times = ImageTimes {
        decode_ms: ms(started_ns, decoded_ns),
        resize_ms: ms(decoded_ns, monotonic_ns()),
    };
    Ok(StoredImage { file, image, times })
}

/// An image file that cannot be written. Requests without images are still served.
fn unwritten(store: &ImageStore, cause: io::Error) -> ImageError {
    if !is_full(&cause) {
        return ImageError::File(cause);
    }
    match cause.raw_os_error() {
        // The store's own bound.
        None => ImageError::StoreFull,
        Some(_) => {
            store.found_full(&cause);
            ImageError::DiskFull
        }
    }
}

#[cfg(test)]
mod tests;
